"""The project with Celery."""
