"""Pictures of graphs: for Mermaid, and for a terminal. Pure: who knows the states passes them in."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from horsies.model.graph import Graph, Join, Node, NodeKind, NodeStatus

Way: TypeAlias = tuple[int, ...]
"""From the outermost graph to a node: `(3, 0)` is node 0 of the sub-workflow that node 3 runs."""

States: TypeAlias = Mapping[Way, NodeStatus]
Notes: TypeAlias = Mapping[Way, str]
"""What stands at the end of a node's line."""

DEEPEST: Final = 24  # a chain of thousands need not be thousands of columns wide
_COLOURS: Final = {
    NodeStatus.PENDING: "fill:#f4f4f4,stroke:#999999,color:#333333",
    NodeStatus.READY: "fill:#fdf6d8,stroke:#c9a400,color:#333333",
    NodeStatus.ENQUEUED: "fill:#e8eefc,stroke:#6d8bd0,color:#333333",
    NodeStatus.RUNNING: "fill:#cfe0ff,stroke:#2f62c9,color:#1a1a1a",
    NodeStatus.COMPLETED: "fill:#d8f0d8,stroke:#3d8b3d,color:#1a1a1a",
    NodeStatus.FAILED: "fill:#f9d6d5,stroke:#c0392b,color:#1a1a1a",
    NodeStatus.SKIPPED: "fill:#eeeeee,stroke:#aaaaaa,color:#777777,stroke-dasharray:4",
}


def mermaid(graph: Graph, states: States | None = None) -> str:
    lines = ["flowchart TD", *_boxes(graph, (), states or {}), *_arrows(graph, ())]
    used = sorted({*(states or {}).values()})
    lines += [f"    classDef {status} {_COLOURS[status]}" for status in used]
    return "\n".join(lines)


def text_tree(graph: Graph, states: States | None = None, notes: Notes | None = None) -> str:
    """A node stands below the one that it waits for; one that waits for several stands at the edge and names them."""
    words = {way: f" {status}" for way, status in (states or {}).items()}
    words |= {way: f"{words.get(way, '')} {note}" for way, note in (notes or {}).items()}
    return "\n".join([graph.name, *_branches(graph, (), words, "")])


# -- Mermaid


def _boxes(graph: Graph, above: Way, states: States) -> Iterator[str]:
    indent = "    " * (len(above) + 1)
    for node in graph.nodes:
        way = (*above, node.index)
        status = f":::{states[way]}" if way in states else ""
        if node.child is None:
            opening, closing = ("[[", "]]") if node.kind is NodeKind.MAP else ("[", "]")
            yield f'{indent}{_name(way)}{opening}"{_label(node)}"{closing}{status}'
        else:
            yield f'{indent}subgraph {_name(way)}["{_label(node)}"]'
            yield from _boxes(node.child, way, states)
            yield f"{indent}end"
            if way in states:
                yield f"{indent}class {_name(way)} {states[way]}"


def _arrows(graph: Graph, above: Way) -> Iterator[str]:
    for node in graph.nodes:
        word = "" if node.join is Join.ALL else f"|{_join_words(node)}|"
        arrow = "-.->" if node.allow_failed_deps else "-->"
        for dependency in node.waits_for:
            edge = "-.->|ended|" if dependency in node.uncounted else f"{arrow}{word}"
            yield f"    {_name((*above, dependency))} {edge} {_name((*above, node.index))}"
        if node.child is not None:
            yield from _arrows(node.child, (*above, node.index))


def _name(way: Way) -> str:
    return "n" + "_".join(map(str, way))


def _label(node: Node) -> str:
    """Its id, and below it the task, or the workflow, if that has another name."""
    what = node.child.name if node.child else node.terms.task_name if node.terms else node.node_id
    words = [_escaped(node.node_id), *([_escaped(what)] if what != node.node_id else [])]
    return "<br/>".join([*words, *(["for each item"] if node.kind is NodeKind.MAP else [])])


def _escaped(text: str) -> str:
    """Mermaid's own way to write a character by its number: quotes and brackets would end the label."""
    return "".join(char if char.isalnum() or char in " _-.,:/" else f"#{ord(char)};" for char in text)


# -- text


def _branches(graph: Graph, above: Way, notes: Notes, prefix: str) -> Iterator[str]:
    below = _below(graph)
    stack = _pushed(below[None], prefix)
    while stack:
        index, line_prefix, is_last = stack.pop()
        node, way = graph.nodes[index], (*above, index)
        yield f"{line_prefix}{'└─ ' if is_last else '├─ '}{_line(graph, node, notes.get(way))}"
        inner = line_prefix + ("   " if is_last else "│  ")
        inner = inner if len(inner) <= 3 * DEEPEST else line_prefix
        if node.child is not None:
            yield from _branches(node.child, way, notes, f"{inner}╎  ")
        stack += _pushed(below[index], inner)


def _below(graph: Graph) -> dict[int | None, list[int]]:
    below: dict[int | None, list[int]] = {None: [], **{node.index: [] for node in graph.nodes}}
    for node in graph.nodes:
        below[node.waits_for[0] if len(node.waits_for) == 1 else None].append(node.index)
    return below


def _pushed(indexes: Sequence[int], prefix: str) -> list[tuple[int, str, bool]]:
    """For a stack: the first on top."""
    return [(index, prefix, index == indexes[-1]) for index in reversed(indexes)]


def _line(graph: Graph, node: Node, note: str | None) -> str:
    words = [node.node_id]
    if node.kind is NodeKind.MAP:
        words.append("(for each item)")
    if node.child is not None and node.child.name != node.node_id:
        words.append(f"(workflow {node.child.name})")
    if len(node.waits_for) > 1:
        join = "after" if node.join is Join.ALL else f"after {_join_words(node)} of"
        words.append(f"← {join} {_names(graph, node.counted)}")
        if node.awaits:
            words.append(f"and the end of {_names(graph, node.awaits)}")
    if note is not None:
        words.append(note)
    return " ".join(words)


def _names(graph: Graph, indexes: Sequence[int]) -> str:
    return ", ".join(graph.nodes[index].node_id for index in indexes)


def _join_words(node: Node) -> str:
    return "any" if node.join is Join.ANY else f"{node.min_success} of {len(node.counted)}"
