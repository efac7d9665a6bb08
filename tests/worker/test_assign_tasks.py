"""Assign claims that are RUNNING in the database to real children."""

from typing import Literal

import pytest

from horsies.model.config import PostgresConfig
from horsies.model.task import Claim
from horsies.tasks.claim import NO_CAPS
from horsies.worker.plan import PREFETCH_MAX, ClaimLimits, DispatcherState, PrefetchPolicy, plan_assignments
from horsies.worker.watermarks import Watermarks
from tests.fixtures.journey import ME
from tests.fixtures.pools import FakeDispatcher, open_pool


def state_for(dispatcher: FakeDispatcher, prefetch: int | Literal["auto"]) -> DispatcherState:
    return DispatcherState(
        ME,
        PostgresConfig(database_url="postgresql://localhost/unused"),
        ClaimLimits(5_000, NO_CAPS),
        dispatcher.children,
        PrefetchPolicy(prefetch, 1),
        Watermarks(["media"]),
    )


def assign(state: DispatcherState, claims: list[Claim]) -> list[Claim]:
    """Return what fits nowhere."""
    shares, rest = plan_assignments(state, claims)
    for child, share in shares.items():
        child.assign(share)
    return rest


async def test_claims_made_when_the_limit_was_higher_run_and_are_not_released() -> None:
    """One task that the machine delayed lowers the limit for a while."""
    async with open_pool(prefetch=PREFETCH_MAX) as dispatcher:
        await dispatcher.until(dispatcher.open_children)
        state = state_for(dispatcher, "auto")
        assert state.prefetch.child_limit == 1
        claims = [dispatcher.claim("quick") for _ in range(50)]
        assert assign(state, claims) == []
        for claim in claims:
            await dispatcher.ending(claim.id)


@pytest.mark.parametrize(("prefetch", "most"), [(0, 1), ("auto", PREFETCH_MAX)])
async def test_claims_that_fit_nowhere_are_released(prefetch: int | Literal["auto"], most: int) -> None:
    async with open_pool(prefetch=PREFETCH_MAX) as dispatcher:
        await dispatcher.until(dispatcher.open_children)
        claims = [dispatcher.claim("quick") for _ in range(most + 2)]
        rest = assign(state_for(dispatcher, prefetch), claims)
        assert {claim.id for claim in rest} == {claim.id for claim in claims[most:]}
        for claim in claims[:most]:
            await dispatcher.ending(claim.id)
