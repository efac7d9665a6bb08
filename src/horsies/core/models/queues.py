"""Where older documents import them from."""

from horsies.model.config import CustomQueueConfig, QueueMode

__all__ = ["CustomQueueConfig", "QueueMode"]
