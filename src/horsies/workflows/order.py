"""The order of nodes, and their names."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


def topological(waits_for: Sequence[Sequence[int]]) -> list[int]:
    """The positions, each after those that it waits for, otherwise as they were listed. Those of a cycle are left out, and all behind it."""
    left = [len(set(dependencies)) for dependencies in waits_for]
    dependents: list[list[int]] = [[] for _ in waits_for]
    for position, dependencies in enumerate(waits_for):
        for dependency in set(dependencies):
            dependents[dependency].append(position)
    free = [position for position, count in enumerate(left) if count == 0]
    heapify(free)
    order: list[int] = []
    while free:
        order.append(heappop(free))
        for dependent in dependents[order[-1]]:
            left[dependent] -= 1
            if left[dependent] == 0:
                heappush(free, dependent)
    return order


def cycle(waits_for: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """One of the cycles that keep positions out of the order: each waits for the next, and the last is the first again."""
    done = set(order)
    position = next(position for position in range(len(waits_for)) if position not in done)
    path: dict[int, int] = {}  # in the order in which they were met
    while position not in path:
        path[position] = len(path)
        position = next(dependency for dependency in waits_for[position] if dependency not in done)
    return [*list(path)[path[position] :], position]


def inverse(order: Sequence[int]) -> list[int]:
    """Of each position its place in the order."""
    places = [0] * len(order)
    for place, position in enumerate(order):
        places[position] = place
    return places


def unique_names(given: Sequence[str | None], defaults: Sequence[str]) -> list[str]:
    """The name that each was given, or its default; a default that is taken becomes `name_2`, `name_3` and so on."""
    taken = {name for name in given if name is not None}
    names: list[str] = []
    last: dict[str, int] = {}
    for name, default in zip(given, defaults, strict=True):
        chosen = name if name is not None else default
        while name is None and chosen in taken:
            last[default] = last.get(default, 1) + 1
            chosen = f"{default}_{last[default]}"
        taken.add(chosen)
        names.append(chosen)
    return names
