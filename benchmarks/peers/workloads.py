"""What is measured and how. Each session begins with a clean state and ends with no process left."""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from benchmarks.measures import percentile
from benchmarks.peers.processes import Answer, PeerFailed, Workers
from benchmarks.peers.session import Bench, Sessions
from benchmarks.peers.sizes import MORE, Sizes

WORKLOADS = ("b1", "b2", "b3", "b4", "sleep", "mem", "async")
LIVE = {"b2", "b3", "b4", "sleep", "mem"}
SLOTS, SLEEP_S = 2, 0.1  # the second as in the adapters' protocol
SLEEP_FIRST = 1_000_000
READY_S = 30
GRACE_S = 30
"""How much later than its own limit an answer may come."""
LOOK_S, LOOK_SHARE = 0.01, 0.01
"""How often the end is looked for, also as a share of the time so far: looking costs, and a percent is fine enough."""
WARM_UP = 5
IDLE_S = 2
STEPS, WIDTH = 10, 20

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Drained:
    tasks: int
    all_of_them: bool
    seconds: float
    twice: int
    bulk: float

    def numbers(self, measure: str) -> Numbers:
        counts = {"tasks": self.tasks, "seconds": self.seconds, "twice": self.twice}
        return {measure: self.tasks / self.seconds} | {f"{measure}: {what}": float(n) for what, n in counts.items()}


def measure(sessions: Sessions, sizes: Sizes, chosen: set[str]) -> Generator[Numbers | str]:
    """Return numbers, or the reason why there are none: whatever one system does, the others still run."""
    runs: dict[str, Callable[[], Iterator[Numbers]]] = {}
    if "b1" in chosen:
        runs["b1"] = lambda: _plain(sessions, sizes)
    if chosen & LIVE:
        runs["live"] = lambda: _live(sessions, sizes, chosen)
    if "async" in chosen:
        runs["async"] = lambda: _asyncio(sessions, sizes)
    for name, run in runs.items():
        began = time.monotonic()
        try:
            yield from run()
            yield {f"{name}: took s": time.monotonic() - began}
        except PeerFailed as failure:
            yield f"{sessions.entry.label}: {name}: {failure}"
        except Exception as surprise:  # noqa: BLE001 - an hour of the others' numbers is not lost for it
            yield f"{sessions.entry.label}: {name}: {type(surprise).__name__}: {surprise}"


def _plain(sessions: Sessions, sizes: Sizes) -> Iterator[Numbers]:
    """One by one, then in bulk; then the worker is started."""
    with sessions.open() as bench:
        sent = bench.ask("send", sizes.sends, sizes.sends_s, within_s=sizes.sends_s + GRACE_S)
        yield {"send": sent["sent"] / sent["seconds"]}
        drained = _drain(bench, sizes, "plain", sizes.drain, already=sent["sent"])
    drained = _longer_if_quick(sessions, sizes, "plain", drained)
    yield drained.numbers("drain") | {"bulk": drained.bulk}
    if sessions.about["only_asyncio"]:
        yield drained.numbers("async drain")


def _asyncio(sessions: Sessions, sizes: Sizes) -> Iterator[Numbers]:
    """Unless it is known by now that there are no coroutines, or that the plain tasks were some."""
    if sessions.about and (not sessions.about["has_asyncio"] or sessions.about["only_asyncio"]):
        return
    with sessions.open() as bench:
        if not bench.about["has_asyncio"]:
            return
        drained = _drain(bench, sizes, "async", sizes.drain)
    yield _longer_if_quick(sessions, sizes, "async", drained).numbers("async drain")


def _longer_if_quick(sessions: Sessions, sizes: Sizes, kind: str, drained: Drained) -> Drained:
    if not drained.all_of_them or drained.tasks < sizes.drain or drained.seconds > sizes.quick_s:
        return drained
    with sessions.open() as bench:
        return _drain(bench, sizes, kind, sizes.long_drain)


def _drain(bench: Bench, sizes: Sizes, kind: str, count: int, *, already: int = 0) -> Drained:
    """By what is durably done, from the first start on; until all is done, or the time is up."""
    filled = bench.ask("bulk", kind, already, count, sizes.bulk_s, within_s=sizes.bulk_s + GRACE_S)
    count = already + filled["sent"]
    with bench.workers(kind) as workers:
        first = _first_start(bench, workers)
        all_began = _wait_for_starts(bench, workers, count, since=first, limit_s=sizes.drain_s)
        done = _wait_for_ends(bench, workers, count if all_began else 1, since=first, limit_s=2 * sizes.drain_s)
        starts = bench.starts.between(0, SLEEP_FIRST)
    if not 0 < done["done"] <= len(starts):
        raise PeerFailed(f"{len(starts)} of {count} tasks began, and {done['done']} are marked as done")
    return Drained(
        tasks=done["done"],
        all_of_them=done["done"] >= count,
        seconds=done["at"] - first,
        twice=len(starts) - len({number for number, _ in starts}),
        bulk=filled["sent"] / filled["seconds"],
    )


def _first_start(bench: Bench, workers: Workers) -> float:
    if not _wait_for_starts(bench, workers, 1, since=time.monotonic(), limit_s=READY_S):
        raise PeerFailed(f"no task began within {READY_S} s")
    return bench.starts.between(0, 2 * SLEEP_FIRST)[0][1]


def _wait_for_starts(bench: Bench, workers: Workers, count: int, *, since: float, limit_s: float) -> bool:
    """Whether there were as many starts before the time was up."""
    while bench.starts.count() < count:
        if time.monotonic() > since + limit_s:
            return False
        _pause(workers, since)
    return True


def _wait_for_ends(bench: Bench, workers: Workers, count: int, *, since: float, limit_s: float) -> Answer:
    while (done := bench.ask("done", within_s=GRACE_S))["done"] < count and done["at"] < since + limit_s:
        _pause(workers, since)
    return done


def _pause(workers: Workers, since: float) -> None:
    workers.insist()
    time.sleep(max(LOOK_S, LOOK_SHARE * (time.monotonic() - since)))


def _live(sessions: Sessions, sizes: Sizes, chosen: set[str]) -> Iterator[Numbers]:
    """An idle worker that has run a few tasks, so that all is loaded. What leaves a backlog behind comes last."""
    with sessions.open() as bench, bench.workers() as workers:
        bench.ask("latency", WARM_UP, READY_S, within_s=READY_S + GRACE_S, insist=workers.insist)
        if "mem" in chosen:
            time.sleep(IDLE_S)
            yield {"memory": workers.pss_mb()}
        if "b2" in chosen:
            yield _latency(bench, workers, sizes)
        if "b4" in chosen and bench.about["has_workflows"]:
            yield _fans(bench, workers, sizes)
            yield _chains(bench, workers, sizes)
        if "sleep" in chosen and bench.about["two_slots"]:
            yield {"sleep": _sleep(bench, workers, sizes)}
        if "b3" in chosen:
            yield _pipeline(bench, workers, sizes)


def _latency(bench: Bench, workers: Workers, sizes: Sizes) -> Numbers:
    within_s = sizes.latency_s + GRACE_S
    answer = bench.ask("latency", sizes.latency, sizes.latency_s, within_s=within_s, insist=workers.insist)
    results = answer["seconds"]
    moments = dict(bench.starts.between(-sizes.latency, 0))  # of tasks with like numbers, the last one's
    begins = [moments[-1 - number] - sent for number, sent in enumerate(answer["sends"]) if -1 - number in moments]
    if len(begins) < len(results):
        raise PeerFailed(f"{len(begins)} of {len(results)} tasks of the latency workload began")
    numbers = {f"latency p{percent}": percentile(results, percent) * 1000 for percent in (50, 95, 99)}
    return numbers | {"start p50": percentile(begins, 50) * 1000, "latency: samples": float(len(results))}


def _fans(bench: Bench, workers: Workers, sizes: Sizes) -> Numbers:
    runs, seconds = sizes.fans, _fan(bench, workers, sizes.fans)
    while seconds < sizes.fans_s and runs < sizes.fans * MORE**2:
        runs *= MORE
        seconds = _fan(bench, workers, runs)
    return {"workflows": runs / seconds, "workflows: runs": float(runs)}


def _fan(bench: Bench, workers: Workers, runs: int) -> float:
    return bench.ask("fan", runs, WIDTH, within_s=2 * GRACE_S, insist=workers.insist)["seconds"]


def _chains(bench: Bench, workers: Workers, sizes: Sizes) -> Numbers:
    within_s = sizes.chains_s + GRACE_S
    chains = bench.ask("chain", sizes.chains, STEPS, sizes.chains_s, within_s=within_s, insist=workers.insist)
    return {"chain p50": percentile(chains["seconds"], 50) * 1000, "chain: runs": float(len(chains["seconds"]))}


def _sleep(bench: Bench, workers: Workers, sizes: Sizes) -> float:
    """The ideal time for what was done as a share of the time since the first start."""
    before, begun = bench.ask("done", within_s=GRACE_S)["done"], bench.starts.count()
    ideal_s = sizes.sleeps * SLEEP_S / SLOTS
    bench.ask("bulk", "sleep", SLEEP_FIRST, sizes.sleeps, READY_S, within_s=READY_S + GRACE_S)
    sent = time.monotonic()
    _wait_for_starts(bench, workers, begun + sizes.sleeps, since=sent, limit_s=3 * ideal_s)
    done = _wait_for_ends(bench, workers, before + sizes.sleeps, since=sent, limit_s=3 * ideal_s)
    starts = bench.starts.between(SLEEP_FIRST, 2 * SLEEP_FIRST)
    if not starts:
        raise PeerFailed("no sleeping task began")
    return (done["done"] - before) * SLEEP_S / SLOTS / (done["at"] - starts[0][1])


def _pipeline(bench: Bench, workers: Workers, sizes: Sizes) -> Numbers:
    """What was done by the end of the last send."""
    before = bench.ask("done", within_s=GRACE_S)["done"]
    sent = bench.ask("pipeline", sizes.pipeline_s, within_s=sizes.pipeline_s + GRACE_S)
    done = bench.ask("done", within_s=GRACE_S)
    workers.insist()
    return {
        "pipeline": (done["done"] - before) / (done["at"] - sent["began"]),
        "pipeline sent": sent["sent"] / sent["seconds"],
    }
