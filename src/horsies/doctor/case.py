"""What is examined, and from when on something counts as wrong."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from horsies.app import Horsies
from horsies.model.config import CustomQueueConfig
from horsies.model.recovery import RecoveryConfig

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`queues` are those of the app; None where no app is known, and so are its name `app` and its `locator`. `schedules` are the names that it declares.
    Moments are the database's; `clock` is this machine's.
    """

    schema: str
    app: str | None = None
    locator: str | None = None
    schedules: Sequence[str] = ()
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    queues: Sequence[CustomQueueConfig] | None = None
    check_timeout_s: float = 5.0
    max_wait_s: float = 600.0
    max_transaction_s: float = 600.0
    stuck_after_s: float = 60.0
    max_skew_s: float = 2.0
    max_producer_skew_s: float = 60.0
    max_dead_rows: int = 50_000
    min_bloat_bytes: int = 256 * MIB
    max_slot_lag_bytes: int = 1024 * MIB
    max_slot_age: int = 1_000_000
    min_days_ahead: int = 3
    look_again_s: float = 2.0
    oldest_postgres: int = 14
    clock: Callable[[], float] = time.time

    @property
    def stale_after_s(self) -> float:
        """A keeper strikes a silent worker off long before."""
        return 2 * self.recovery.dead_after_ms / 1000 + 10


def case_of(app: Horsies, *, knows_app: bool) -> Case:
    """The case of an app on its database. Without `knows_app` only the database and its settings are known, and nothing is compared with the app."""
    return Case(
        schema=app.broker.config.schema,
        recovery=app.config.recovery,
        queues=app.config.queues if knows_app else None,
        app=app.name if knows_app else None,
        locator=app.locator if knows_app else None,
        schedules=[each.name for each in app.config.schedule.schedules] if knows_app and app.config.schedule else [],
    )
