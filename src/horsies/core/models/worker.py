"""Where older documents import it from."""

from horsies.model.worker_config import WorkerConfig

__all__ = ["WorkerConfig"]
