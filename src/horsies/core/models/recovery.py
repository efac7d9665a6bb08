"""Where older documents import it from."""

from horsies.model.config import RecoveryConfig

__all__ = ["RecoveryConfig"]
