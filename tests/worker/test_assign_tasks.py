"""Assign claims that are RUNNING in the database to real children."""

from typing import Literal

import pytest

from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.tasks.claim import NO_CAPS
from horsies.tasks.unknown import KnownTasks
from horsies.worker.capacity import PREFETCH_MAX, ClaimLimits, PrefetchPolicy
from horsies.worker.dispatcher import assign_tasks
from horsies.worker.pending import PendingWork
from horsies.worker.quarantine import Quarantine
from horsies.worker.watermarks import Watermarks
from tests.fixtures.journey import ME
from tests.fixtures.pools import FakeDispatcher, open_pool


def pending_for(dispatcher: FakeDispatcher, prefetch: int | Literal["auto"]) -> PendingWork:
    database = PostgresConfig(database_url="postgresql://localhost/unused")
    return PendingWork(
        ME,
        database,
        ClaimLimits(5_000, NO_CAPS),
        dispatcher.children,
        PrefetchPolicy(prefetch, 1),
        Watermarks(["media"]),
        Quarantine(WorkerResilienceConfig()),
        known_tasks=KnownTasks({"quick": 1}),
    )


async def test_claims_made_when_the_limit_was_higher_run_and_are_not_released() -> None:
    """One task that the machine delayed lowers the limit for a while."""
    async with open_pool(prefetch=PREFETCH_MAX) as dispatcher:
        await dispatcher.until(dispatcher.open_children)
        pending = pending_for(dispatcher, "auto")
        assert pending.prefetch.child_limit == 1
        claims = [dispatcher.claim("quick") for _ in range(50)]
        assign_tasks(pending, claims)
        assert pending.releases == []
        for claim in claims:
            await dispatcher.ending(claim.id)


@pytest.mark.parametrize(("prefetch", "most"), [(0, 1), ("auto", PREFETCH_MAX)])
async def test_claims_that_fit_nowhere_are_released(prefetch: int | Literal["auto"], most: int) -> None:
    async with open_pool(prefetch=PREFETCH_MAX) as dispatcher:
        await dispatcher.until(dispatcher.open_children)
        pending = pending_for(dispatcher, prefetch)
        claims = [dispatcher.claim("quick") for _ in range(most + 2)]
        assign_tasks(pending, claims)
        assert {claim.id for claim in pending.releases} == {claim.id for claim in claims[most:]}
        for claim in claims[:most]:
            await dispatcher.ending(claim.id)
