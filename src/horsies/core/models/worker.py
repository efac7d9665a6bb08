"""Where older documents import it from."""

from horsies.model.worker import WorkerConfig

__all__ = ["WorkerConfig"]
