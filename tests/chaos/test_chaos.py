"""A short chaos run: like `python -m benchmarks.chaos`, with a few fixed faults. Only violations are asserted."""

import pytest

from benchmarks.chaos.plan import Account, Plan
from benchmarks.chaos.report import summary
from benchmarks.chaos.sections import run_server

FAULTS = ("kill-child", "kill-leader", "crash-server", "pause", "cut")


@pytest.mark.timeout(300)
@pytest.mark.promise("W4", "W9", "W11", "W14", "C11", "T2")
def test_no_task_is_lost_or_run_twice_under_faults() -> None:
    plan = Plan(
        seconds=0,
        seed=7,
        faults=FAULTS,
        dead_after_s=1.5,
        pause_s=0.05,
        rest_s=(0.1, 0.5),
        settings={"fsync": "off"},
    )
    account = run_server(plan, lambda _state: None)
    assert account.is_good, _describe(account)
    assert len(account.history.rows) > 50
    assert set(account.faults) == set(FAULTS)


def _describe(account: Account) -> str:
    return "\n".join([*map(str, account.violations), *account.problems, str(summary([account], 7))])
