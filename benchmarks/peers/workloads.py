"""What is measured, how much of it, and how. Each session begins with a clean state and ends with no process left."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measures import percentile
from benchmarks.peers.processes import Asked, PeerFailed, Workers, asking, environment, working
from benchmarks.peers.servers import Servers
from benchmarks.peers.systems import Entry

WORKLOADS = ("b1", "b2", "b3", "b4", "sleep", "mem", "async")
SLOTS, SLEEP_S = 2, 0.1  # the second as in the adapters' protocol
SLEEP_FIRST = 1_000_000
READY_S = 90
LOOK_S = 0.02
WARM_UP = 5
IDLE_S = 2
LATENCY_S = 60
STEPS, WIDTH = 10, 20

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    rounds: int
    drain: int
    drain_s: float
    """A slow system is measured for so long from its first start, and has as long again to enqueue."""
    sends: int
    latency: int
    pipeline_s: float
    fans: int
    chains: int
    sleeps: int


FULL = Sizes(
    rounds=3, drain=20_000, drain_s=15, sends=2_000, latency=500, pipeline_s=15, fans=50, chains=20, sleeps=200
)
QUICK = Sizes(rounds=1, drain=600, drain_s=5, sends=60, latency=30, pipeline_s=2, fans=5, chains=3, sleeps=20)


@dataclass(frozen=True, slots=True)
class Bench:
    """One entry in one session: its adapter is asked, its workers can be started."""

    ask: Asked
    about: dict[str, Any]
    env: dict[str, str]
    starts_folder: Path
    work_folder: Path

    @contextmanager
    def workers(self) -> Generator[Workers]:
        with working(self.about["workers"], self.env, self.work_folder / "worker.log", self.work_folder) as workers:
            yield workers

    def starts(self, first: int = 0, beyond: int = SLEEP_FIRST) -> list[tuple[int, float]]:
        """Number and moment of every start of a task with a number in this range, in order of time."""
        lines = [line.split() for path in self.starts_folder.iterdir() for line in _whole_lines(path)]
        starts = ((int(number), float(moment)) for number, moment in lines)
        return sorted((start for start in starts if first <= start[0] < beyond), key=lambda start: start[1])


def _whole_lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").rpartition("\n")[0].splitlines()


@contextmanager
def session(servers: Servers, entry: Entry, python: Path) -> Generator[Bench]:
    url = servers.clean_state(entry.system.name)
    starts, work = servers.new_folder(), servers.new_folder()
    env = environment(
        {
            "PEERS_DATABASE_URL": url,
            "PEERS_REDIS_URL": servers.redis_url,
            "PEERS_SETTINGS": entry.settings,
            "PEERS_STARTS": str(starts),
            "PEERS_FOLDER": str(work),
        }
    )
    with asking(python, entry.system.adapter, env, work / "adapter.log") as ask:
        yield Bench(ask, ask("open"), env, starts, work)


def measure(servers: Servers, entry: Entry, python: Path, sizes: Sizes, chosen: set[str]) -> Generator[Numbers | str]:
    """Numbers, or the reason why there are none; one session after the other."""
    sessions: dict[str, Callable[[Bench], Iterator[Numbers]]] = {
        "send": lambda bench: _send(bench, sizes),
        "b1": lambda bench: _drain(bench, sizes, "plain", "drain"),
        "live": lambda bench: _live(bench, sizes, chosen),
        "b3": lambda bench: _pipeline(bench, sizes),
        "async": lambda bench: _drain(bench, sizes, "async", "async drain"),
    }
    wanted = set(chosen)
    if "b1" in chosen:
        wanted.add("send")
    if chosen & {"b2", "b4", "sleep", "mem"}:
        wanted.add("live")
    for name, run in sessions.items():
        if name not in wanted:
            continue
        try:
            with session(servers, entry, python) as bench:
                yield from run(bench)
        except PeerFailed as failure:
            yield f"{entry.label}: {name}: {failure}"


def _send(bench: Bench, sizes: Sizes) -> Iterator[Numbers]:
    yield {"send": sizes.sends / bench.ask("send", sizes.sends)["seconds"]}


def _drain(bench: Bench, sizes: Sizes, kind: str, measure: str) -> Iterator[Numbers]:
    """By what is durably done, from the first start on; until all is done, or the time is up."""
    if kind == "async" and not bench.about["has_asyncio"]:
        return
    filled = bench.ask("bulk", kind, 0, sizes.drain, sizes.drain_s)
    count = filled["sent"]
    with bench.workers() as workers:
        first = _first_start(bench, workers)
        seen = _wait_for_starts(bench, workers, count, until=first + sizes.drain_s)
        done = bench.ask("done")
        while seen and done["done"] < count and done["at"] < first + 2 * sizes.drain_s:
            workers.insist()
            time.sleep(LOOK_S)
            done = bench.ask("done")
        starts = bench.starts()
    if seen and done["done"] < count:
        raise PeerFailed(f"only {done['done']} of {count} tasks were marked as done")
    if not done["done"]:
        raise PeerFailed(f"{len(starts)} of {count} tasks began, none was marked as done")
    yield {measure: done["done"] / (done["at"] - first), f"{measure}: twice": float(_repeated(starts))}
    if kind == "plain":
        yield {"bulk": count / filled["seconds"]}


def _first_start(bench: Bench, workers: Workers) -> float:
    deadline = time.monotonic() + READY_S
    while not (starts := bench.starts()):
        workers.insist()
        if time.monotonic() > deadline:
            raise PeerFailed(f"no task began within {READY_S} s")
        time.sleep(LOOK_S)
    return starts[0][1]


def _wait_for_starts(
    bench: Bench, workers: Workers, count: int, *, until: float, first: int = 0, beyond: int = SLEEP_FIRST
) -> bool:
    """Whether every task has begun before the time was up."""
    while time.monotonic() < until:
        if len({number for number, _ in bench.starts(first, beyond)}) >= count:
            return True
        workers.insist()
        time.sleep(LOOK_S)
    return False


def _repeated(starts: list[tuple[int, float]]) -> int:
    return len(starts) - len({number for number, _ in starts})


def _live(bench: Bench, sizes: Sizes, chosen: set[str]) -> Iterator[Numbers]:
    """An idle worker that has run a few tasks, so that all is loaded."""
    with bench.workers() as workers:
        _warm_up(bench, workers)
        if "mem" in chosen:
            time.sleep(IDLE_S)
            yield {"memory": workers.pss_mb()}
        if "b2" in chosen:
            yield _latency(bench, workers, sizes)
        if "sleep" in chosen and bench.about["two_slots"]:
            yield {"sleep": _sleep(bench, workers, sizes)}
        if "b4" in chosen and bench.about["has_workflows"]:
            yield {"workflows": sizes.fans / bench.ask("fan", sizes.fans, WIDTH, insist=workers.insist)["seconds"]}
            chains = bench.ask("chain", sizes.chains, STEPS, insist=workers.insist)["seconds"]
            yield {"chain p50": percentile(chains, 50) * 1000}


def _warm_up(bench: Bench, workers: Workers) -> None:
    bench.ask("latency", WARM_UP, READY_S, within_s=READY_S, insist=workers.insist)
    for path in bench.starts_folder.iterdir():
        path.write_bytes(b"")  # written by appending: what follows starts at the front


def _latency(bench: Bench, workers: Workers, sizes: Sizes) -> Numbers:
    answer = bench.ask("latency", sizes.latency, LATENCY_S, insist=workers.insist)
    results = answer["seconds"]
    moments = dict(bench.starts(-sizes.latency, 0))
    begins = [moments[-1 - number] - sent for number, sent in enumerate(answer["sends"]) if -1 - number in moments]
    if len(begins) < len(results):
        raise PeerFailed(f"{len(begins)} of {len(results)} tasks of the latency workload began")
    numbers = {f"latency p{percent}": percentile(results, percent) * 1000 for percent in (50, 95, 99)}
    return numbers | {"start p50": percentile(begins, 50) * 1000}


def _sleep(bench: Bench, workers: Workers, sizes: Sizes) -> float:
    """The ideal time as a share of the time from the first start to the last end."""
    before = bench.ask("done")["done"]
    ideal = sizes.sleeps * SLEEP_S / SLOTS
    bench.ask("bulk", "sleep", SLEEP_FIRST, sizes.sleeps, READY_S)
    until = time.monotonic() + 20 * ideal + READY_S
    if not _wait_for_starts(bench, workers, sizes.sleeps, until=until, first=SLEEP_FIRST, beyond=2 * SLEEP_FIRST):
        raise PeerFailed("the sleeping tasks did not all begin")
    while (done := bench.ask("done"))["done"] < before + sizes.sleeps and time.monotonic() < until:
        time.sleep(LOOK_S)
    return ideal / (done["at"] - bench.starts(SLEEP_FIRST, 2 * SLEEP_FIRST)[0][1])


def _pipeline(bench: Bench, sizes: Sizes) -> Iterator[Numbers]:
    """What was done by the end of the last send."""
    with bench.workers() as workers:
        _warm_up(bench, workers)
        before = bench.ask("done")["done"]
        sent = bench.ask("pipeline", sizes.pipeline_s)
        done = bench.ask("done")
        workers.insist()
    yield {
        "pipeline": (done["done"] - before) / (done["at"] - sent["began"]),
        "pipeline sent": sent["sent"] / sent["seconds"],
    }
