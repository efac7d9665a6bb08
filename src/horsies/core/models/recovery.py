"""Where older documents import it from."""

from horsies.model.recovery import RecoveryConfig

__all__ = ["RecoveryConfig"]
