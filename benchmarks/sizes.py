"""How much of everything is measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Counts of tasks, rows or messages per round."""

    rounds: int
    default_drain: int
    auto_drain: int
    sends: int
    producer_sends: int
    bulk: int
    latency: int
    prefetch: int
    costs: int
    chains: int
    large_starts: int
    map_items: int


FULL = Sizes(
    rounds=3,
    default_drain=5_000,
    auto_drain=20_000,
    sends=2_000,
    producer_sends=500,
    bulk=100_000,
    latency=500,
    prefetch=10_000,
    costs=7,
    chains=50,
    large_starts=5,
    map_items=10_000,
)
QUICK = Sizes(
    rounds=1,
    default_drain=1_000,
    auto_drain=10_000,
    sends=300,
    producer_sends=100,
    bulk=20_000,
    latency=150,
    prefetch=3_000,
    costs=3,
    chains=15,
    large_starts=3,
    map_items=10_000,
)

BULK_CHUNK = 1_000
"""Rows per statement of everything that is done in bulk."""
