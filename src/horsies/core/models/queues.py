"""Where older documents import it from."""

from horsies.model.config import CustomQueueConfig

__all__ = ["CustomQueueConfig"]
