"""A small project that compares prices of suppliers: with Celery in `before`, and with horsies in `after`.

docs/from-celery.md shows the differences.
"""
