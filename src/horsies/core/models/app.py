"""Where older documents import them from."""

from horsies.app import Horsies
from horsies.model.config import AppConfig

__all__ = ["AppConfig", "Horsies"]
