"""What is RUNNING in the database, handed out to real children."""

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


def books_of(dispatcher: FakeDispatcher, prefetch: int | Literal["auto"]) -> PendingWork:
    database = PostgresConfig(database_url="postgresql://nobody@nowhere/nothing")
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


async def test_what_was_claimed_for_a_larger_frame_is_run_and_not_given_back() -> None:
    """A task that the machine held up makes all of them look slow for a while."""
    async with open_pool(frame=PREFETCH_MAX) as dispatcher:
        await dispatcher.until(dispatcher.open_children)
        pending = books_of(dispatcher, "auto")
        assert pending.prefetch.size == 1
        claims = [dispatcher.claim("quick") for _ in range(50)]
        assign_tasks(pending, claims)
        assert pending.releases == []
        for claim in claims:
            await dispatcher.ending(claim.id)


@pytest.mark.parametrize(("prefetch", "most"), [(0, 1), ("auto", PREFETCH_MAX)])
async def test_what_fits_nowhere_is_given_back(prefetch: int | Literal["auto"], most: int) -> None:
    async with open_pool(frame=PREFETCH_MAX) as dispatcher:
        await dispatcher.until(dispatcher.open_children)
        pending = books_of(dispatcher, prefetch)
        claims = [dispatcher.claim("quick") for _ in range(most + 2)]
        assign_tasks(pending, claims)
        assert {claim.id for claim in pending.releases} == {claim.id for claim in claims[most:]}
        for claim in claims[:most]:
            await dispatcher.ending(claim.id)
