"""The cases. Each alternates with the same run on an empty database: empty, grown, empty, grown ..."""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.bars import Bar
from benchmarks.growth import capped, idle, scale
from benchmarks.growth.entries import Entry, Settings, Sizes
from benchmarks.growth.ground import EMPTY, Ground
from benchmarks.growth.passage import Passage, watch
from benchmarks.growth.scenes import fill_backlog, fill_delayed, fill_finished, fill_unknown, held_snapshot
from benchmarks.place import Place
from benchmarks.tasks import Prefetch
from benchmarks.worker import NO_RECYCLING, running_worker

Say = Callable[[str], None]
Case = Callable[[Ground, Sizes, Say], Iterator[Entry | Bar]]

UPPER_BAR, BAR = 0.95, 0.9
SETTINGS: Final[tuple[Settings, ...]] = ("auto", "default")
PREFETCH: Final[dict[Settings, Prefetch]] = {"auto": "auto", "default": 0}


@dataclass(frozen=True, slots=True)
class Setup:
    """How a run is set up. `filled`: tasks that are sent to the copy; 0 where the template has them already."""

    template: str
    filled: int
    queues: int = 0
    meanwhile: Callable[[Place], AbstractContextManager[object]] = nullcontext
    block: int | None = None


def finished(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    with _scene(ground, "finished", partial(fill_finished, count=sizes.rows), show_progress):
        yield from _beside(ground, "finished", sizes, show_progress)


def backlog(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    """The first ones of it."""
    with _scene(ground, "backlog", partial(fill_backlog, count=sizes.rows), show_progress):
        for settings in SETTINGS:
            entry = Entry("backlog", f"a backlog of {sizes.rows:,}", settings, BAR)
            yield _in_turns(
                ground, entry, sizes, Setup(EMPTY, sizes.count(settings)), Setup("backlog", 0), show_progress
            )


def delayed(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    with _scene(ground, "delayed", partial(fill_delayed, count=sizes.rows), show_progress):
        yield from _beside(ground, "delayed", sizes, show_progress)


def unknown(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    """Tasks that no worker knows: set aside by workers before, and still in the queue, between those that are known."""
    for scene, label, set_aside in (
        ("unknown", "unknown, set aside", True),
        ("unforeseen", "unknown, in the queue", False),
    ):
        with _scene(ground, scene, partial(fill_unknown, count=sizes.rows, set_aside=set_aside), show_progress):
            yield from _beside(ground, scene, sizes, show_progress, label=label, bar=UPPER_BAR)


def _beside(
    ground: Ground, scene: str, sizes: Sizes, show_progress: Say, *, label: str | None = None, bar: float = BAR
) -> Iterator[Entry]:
    """The same tasks on an empty database, and beside the rows of the scene."""
    for settings in SETTINGS:
        count = sizes.count(settings)
        entry = Entry(scene, f"{sizes.rows:,} {label or scene}", settings, bar)
        yield _in_turns(ground, entry, sizes, Setup(EMPTY, count), Setup(scene, count), show_progress)


def queues(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    """As many tasks, spread over all queues of one worker, beside all in the default queue of an app that has no other."""
    for settings in SETTINGS:
        count = sizes.count(settings)
        entry = Entry("queues", f"{sizes.queues} queues", settings, BAR)
        yield _in_turns(
            ground, entry, sizes, Setup(EMPTY, count), Setup(EMPTY, count, queues=sizes.queues), show_progress
        )


def snapshot(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    entry = Entry("snapshot", f"a snapshot held, {sizes.held:,} through", "auto", BAR)
    plain = Setup(EMPTY, sizes.held, block=sizes.held // sizes.blocks)
    held = Setup(EMPTY, sizes.held, block=sizes.held // sizes.blocks, meanwhile=held_snapshot)
    yield _in_turns(ground, entry, sizes, plain, held, show_progress, count=sizes.held)


def capped_claim(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    yield capped.measure(ground, sizes, show_progress)


def workers(ground: Ground, sizes: Sizes, show_progress: Say) -> Iterator[Entry]:
    yield from idle.measure(ground, sizes, show_progress)


CASES: Final[dict[str, Case]] = {
    "finished": finished,
    "backlog": backlog,
    "delayed": delayed,
    "unknown": unknown,
    "queues": queues,
    "snapshot": snapshot,
    "capped": capped_claim,
    "workers": workers,
    "same-queue": scale.idle_of_same_queue,
    "workflows": scale.running_workflows,
    "nodes": scale.large_workflow,
    "bulk": scale.bulk_send,
}


@contextmanager
def _scene(ground: Ground, name: str, fill: Callable[[Place], None], show_progress: Say) -> Generator[None]:
    show_progress(f"{name}: filling")
    ground.make(name, fill)
    try:
        yield
    finally:
        ground.forget(name)


def _in_turns(
    ground: Ground,
    entry: Entry,
    sizes: Sizes,
    empty: Setup,
    grown: Setup,
    show_progress: Say,
    *,
    count: int | None = None,
) -> Entry:
    for number in range(1, sizes.rounds + 1):
        for setup, passages in ((empty, entry.empty), (grown, entry.grown)):
            passages.append(_run(ground, setup, entry.settings, count or sizes.count(entry.settings)))
        rates = f"{entry.empty[-1].rate:,.0f}/s empty, {entry.grown[-1].rate:,.0f}/s grown"
        show_progress(f"{entry.label}, {entry.settings}, round {number}/{sizes.rounds}: {rates}")
    return entry


def _run(ground: Ground, setup: Setup, settings: Settings, count: int) -> Passage:
    with ground.fresh(setup.template) as place:
        if setup.filled:
            fill_backlog(place, setup.filled, setup.queues)
        place.admin.execute("checkpoint")  # what the filling left to be written is not the run's
        with (
            setup.meanwhile(place),
            running_worker(place, PREFETCH[settings], *NO_RECYCLING, queues=setup.queues) as worker,
        ):
            return watch(place, [worker], count, block=setup.block)
