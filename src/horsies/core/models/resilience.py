"""Where older documents import it from."""

from horsies.model.recovery import WorkerResilienceConfig

__all__ = ["WorkerResilienceConfig"]
