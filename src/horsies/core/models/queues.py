"""An import path that older documents use; a real module, so that type checkers find it."""

from horsies.model.config import CustomQueueConfig, QueueMode

__all__ = ["CustomQueueConfig", "QueueMode"]
