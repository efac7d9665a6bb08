"""Where older documents import it from."""

from horsies.model.config import WorkerResilienceConfig

__all__ = ["WorkerResilienceConfig"]
