"""Settings for when something is away, or dies: how long it is waited for, and who notices."""

from collections.abc import Iterator
from typing import Literal

from horsies.model.problems import number_problems, refuse
from horsies.model.value import Value


class WorkerResilienceConfig(Value):
    """How a worker rides out a database that is away. `db_retry_max_attempts` 0 means for ever."""

    db_retry_initial_ms: int = 500
    db_retry_max_ms: int = 5_000
    db_retry_max_attempts: int = 0
    notify_poll_interval_ms: int = 5_000

    def __post_init__(self) -> None:
        refuse(self, self._problems())

    def delay_ms(self, attempt: int, jitter: float) -> int:
        """How long to wait after this many failures in a row, counted from 0.

        `jitter` is the caller's random number from -1 to 1 and moves the delay by up to a quarter. It moves the longest
        delay too, downwards only, or workers that lost the database together would all return at the same moment.
        """
        if attempt < 0 or not -1 <= jitter <= 1:
            raise ValueError(f"attempt {attempt} must be 0 or more, and jitter {jitter} from -1 to 1")
        doublings = min(attempt, 16)  # beyond any allowed ratio of the two limits, and safe from huge numbers
        delay_ms = min(self.db_retry_initial_ms * 2**doublings, self.db_retry_max_ms)
        return min(round(delay_ms * (1 + jitter / 4)), self.db_retry_max_ms)

    def _problems(self) -> Iterator[str]:
        delays = [
            *number_problems("db_retry_initial_ms", self.db_retry_initial_ms, 100, 60_000),
            *number_problems("db_retry_max_ms", self.db_retry_max_ms, 500, 300_000),
        ]
        yield from delays
        if not delays and self.db_retry_max_ms < self.db_retry_initial_ms:
            yield (
                f"db_retry_max_ms {self.db_retry_max_ms} is below db_retry_initial_ms {self.db_retry_initial_ms}; "
                "raise the first or lower the second"
            )
        yield from number_problems("db_retry_max_attempts", self.db_retry_max_attempts, 0, 10_000)
        yield from number_problems("notify_poll_interval_ms", self.notify_poll_interval_ms, 1_000, 300_000)


class RecoveryConfig(Value):
    """How the dead are noticed, and how long the living are given.

    A worker beats every `heartbeat_ms`; it is dead when the keeper has watched its heartbeat stand still for `dead_after_ms`.
    A task that is over its time, or cancelled, gets `grace_ms` from the soft stop to the kill. `frozen_after_ms` is when a child
    that gives no sign of life is killed. "auto": when its process has been stopped for `dead_after_ms`, or has neither used the CPU nor waited
    for a disk for a minute (Linux; elsewhere it is only reported). A number: after so long a silence, whatever it does meanwhile; a long
    call into C that holds the GIL is silent and healthy. None: never.

    A task that no living worker knows waits for `unknown_task_patience_ms`, one whose parameters are another release's for
    `changed_task_patience_ms`. Then it fails.
    """

    heartbeat_ms: int = 3_000
    dead_after_ms: int = 10_000
    keeper_ms: int = 1_000
    grace_ms: int = 5_000
    snapshot_ms: int = 15_000
    frozen_after_ms: int | Literal["auto"] | None = "auto"
    unknown_task_patience_ms: int = 86_400_000
    changed_task_patience_ms: int = 300_000

    def __post_init__(self) -> None:
        refuse(self, self._problems())

    def _problems(self) -> Iterator[str]:
        beats = [
            *number_problems("heartbeat_ms", self.heartbeat_ms, 100, 300_000),
            *number_problems("dead_after_ms", self.dead_after_ms, 500, 3_600_000),
        ]
        yield from beats
        if not beats and self.dead_after_ms < 2 * self.heartbeat_ms:
            yield (
                f"dead_after_ms {self.dead_after_ms} is below two heartbeats of {self.heartbeat_ms}; one late beat would "
                "kill a healthy worker: raise the first or lower the second"
            )
        yield from number_problems("keeper_ms", self.keeper_ms, 100, 60_000)
        yield from number_problems("grace_ms", self.grace_ms, 0, 3_600_000)
        yield from number_problems("snapshot_ms", self.snapshot_ms, 1_000, 3_600_000)
        yield from number_problems("unknown_task_patience_ms", self.unknown_task_patience_ms, 0, 31_536_000_000)
        yield from number_problems("changed_task_patience_ms", self.changed_task_patience_ms, 0, 31_536_000_000)
        if self.frozen_after_ms is not None and self.frozen_after_ms != "auto":
            frozen = list(number_problems("frozen_after_ms", self.frozen_after_ms, 1_000, 86_400_000))
            yield from (f'{problem}; or "auto", or None' for problem in frozen)
            if not frozen and not beats and self.frozen_after_ms < 3 * self.heartbeat_ms:
                yield (
                    f"frozen_after_ms {self.frozen_after_ms} is below three heartbeats of {self.heartbeat_ms}, at which children "
                    "are asked; a child that is slow to answer once would be killed: raise it"
                )
