"""How much of each workload. Slow systems are cut off by time, fast ones are given more until it takes long enough to be meant."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    rounds: int
    sends: int
    sends_s: float
    drain: int
    bulk_s: float
    drain_s: float
    """Measured from the first start; a system has twice as long when it has nothing to show by then."""
    quick_s: float
    """A backlog that is gone sooner is drained again, and larger."""
    long_drain: int
    latency: int
    latency_s: float
    fans: int
    fans_s: float
    """Workflows that take less are run again, `MORE` times as many."""
    chains: int
    chains_s: float
    sleeps: int
    pipeline_s: float


MORE = 5

FULL = Sizes(
    rounds=3,
    sends=2_000,
    sends_s=2,
    drain=20_000,
    bulk_s=4,
    drain_s=6,
    quick_s=4,
    long_drain=60_000,
    latency=500,
    latency_s=8,
    fans=20,
    fans_s=2,
    chains=20,
    chains_s=4,
    sleeps=60,
    pipeline_s=5,
)
QUICK = Sizes(
    rounds=1,
    sends=60,
    sends_s=1,
    drain=600,
    bulk_s=2,
    drain_s=3,
    quick_s=0.1,
    long_drain=1_200,
    latency=30,
    latency_s=3,
    fans=5,
    fans_s=0.1,
    chains=3,
    chains_s=2,
    sleeps=20,
    pipeline_s=2,
)
