"""The embedded PostgreSQL for development, the quick start and the tests."""
