"""The options of nodes and workflows: which of them cannot be met."""

from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from horsies.model.config import AppConfig
from horsies.model.errors import QueueError
from horsies.model.graph import Join, NodeKind
from horsies.model.options import SendOptions, as_span, span_problems
from horsies.model.problems import number_problems
from horsies.tasks.node import TaskNode
from horsies.workflows.draft import PartNode

MAX_NAME: Final = 200
MAX_PARALLEL: Final = 10_000
MAX_DEPTH: Final = 32
TOO_DEEP: Final = f"sub-workflows are nested more than {MAX_DEPTH} deep; does one contain itself?"
MAX_QUORUM: Final = 1_000_000
SHORTEST: Final = timedelta(milliseconds=1)

Word = TypeVar("Word", bound=Enum)


def name_problems(what: str, name: object) -> Iterator[str]:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        yield f"{what} must be 1 to {MAX_NAME} printable characters, not {_short(name)}"


def word(kind: type[Word], value: object) -> Word | None:
    """A member of an enum, given as such or as its text."""
    try:
        return kind(value)
    except ValueError:
        return None


def word_problem(name: str, kind: type[Enum], value: object) -> str:
    return f"{name} must be one of {', '.join(repr(member.value) for member in kind)}, not {_short(value)}"


def join_problems(node: TaskNode[Any] | PartNode[Any], dependencies: int) -> Iterator[str]:
    join = word(Join, node.join)
    if join is None:
        yield word_problem("join", Join, node.join)
    elif join is Join.QUORUM:
        yield from _quorum_problems(node.min_success, dependencies)
    elif node.min_success is not None:
        yield f'min_success={node.min_success!r} says nothing with join="{join}"; write join="quorum", or leave it out'
    if join is Join.ANY and dependencies == 0:
        yield 'join="any" can never be met, because it waits for nothing; give it waits_for=[...]'
    if not isinstance(node.allow_failed_deps, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody has a type checker
        yield f"allow_failed_deps must be True or False, not {_short(node.allow_failed_deps)}"


def _quorum_problems(least: int | None, dependencies: int) -> Iterator[str]:
    if least is None:
        yield 'join="quorum" needs min_success: how many of the nodes it waits for must succeed'
    elif found := list(number_problems("min_success", least, 1, MAX_QUORUM)):
        yield from found
    elif least > dependencies:
        yield f"min_success={least} can never be met, because it waits for {dependencies}"


def term_problems(node: TaskNode[Any], config: AppConfig) -> Iterator[str]:
    if node.good_until is not None or node.priority is not None:
        yield from SendOptions(good_until=node.good_until, priority=node.priority).problems()
    if node.queue is not None:
        try:
            config.queue_named(node.queue)
        except QueueError as error:
            yield f"queue: {error}"
    if node.max_parallel is not None:
        yield from number_problems("max_parallel", node.max_parallel, 1, MAX_PARALLEL)
    if node.max_failures is not None:
        yield from number_problems("max_failures", node.max_failures, 0, MAX_QUORUM)
    if node.min_item_success is not None:
        yield from number_problems("min_success", node.min_item_success, 0, MAX_QUORUM)
    if node.may_have_gaps and node.kind is not NodeKind.MAP:
        yield "max_failures and min_item_success are for the items of a map; write task.map_node(...)"


def time_limit_problems(limit: float | timedelta | None) -> Iterator[str]:
    if limit is None:
        return
    found = list(span_problems("time_limit", limit))
    yield from found
    if not found and as_span(limit) < SHORTEST:
        yield f"time_limit is {limit}, which leaves it no time; choose more, or leave it out"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_NAME else f"{text[:40]}..."
