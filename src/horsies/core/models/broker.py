"""Where older documents import them from."""

from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig

__all__ = ["PostgresBroker", "PostgresConfig"]
