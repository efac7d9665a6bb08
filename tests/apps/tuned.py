"""The tasks of `basic`, on an app whose settings come from the environment of the worker."""

import os

from horsies import AppConfig, Horsies, RecoveryConfig, WorkerResilienceConfig
from tests.apps import basic


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


_prefetch = os.environ.get("HORSIES_TEST_PREFETCH", "0")

app = Horsies(
    AppConfig(
        prefetch_buffer="auto" if _prefetch == "auto" else int(_prefetch),
        claim_lease_ms=_number("HORSIES_TEST_LEASE_MS", 60_000),
        resilience=WorkerResilienceConfig(
            db_retry_initial_ms=_number("HORSIES_TEST_RETRY_MS", 100),
            db_retry_max_ms=500,
            db_retry_max_attempts=_number("HORSIES_TEST_ATTEMPTS", 0),
            notify_poll_interval_ms=_number("HORSIES_TEST_POLL_MS", 300_000),  # only notifications, unless asked
        ),
        recovery=RecoveryConfig(
            heartbeat_ms=_number("HORSIES_TEST_HEARTBEAT_MS", 3_000),
            dead_after_ms=_number("HORSIES_TEST_DEAD_AFTER_MS", 10_000),
            maintenance_ms=_number("HORSIES_TEST_MAINTENANCE_MS", 1_000),
        ),
    )
)

for task in basic.app.tasks.values():
    app.task(task.name)(task.function)
