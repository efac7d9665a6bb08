"""Render graphs for Mermaid and for a terminal. Pure functions: the caller passes the states of nodes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from horsies.model.graph import Graph, Join, Node, NodeKind, NodeStatus

NodePath: TypeAlias = tuple[int, ...]
"""The indexes from the outermost graph to a node: `(3, 0)` is node 0 of the sub-workflow that node 3 runs."""

States: TypeAlias = Mapping[NodePath, NodeStatus]
Notes: TypeAlias = Mapping[NodePath, str]
"""Text at the end of a node's line."""

MAX_INDENT: Final = 24 * 3  # columns, so that a chain of thousands of nodes stays readable
_COLOURS: Final = {
    NodeStatus.PENDING: "fill:#f4f4f4,stroke:#999999,color:#333333",
    NodeStatus.READY: "fill:#fdf6d8,stroke:#c9a400,color:#333333",
    NodeStatus.ENQUEUED: "fill:#e8eefc,stroke:#6d8bd0,color:#333333",
    NodeStatus.RUNNING: "fill:#cfe0ff,stroke:#2f62c9,color:#1a1a1a",
    NodeStatus.COMPLETED: "fill:#d8f0d8,stroke:#3d8b3d,color:#1a1a1a",
    NodeStatus.FAILED: "fill:#f9d6d5,stroke:#c0392b,color:#1a1a1a",
    NodeStatus.SKIPPED: "fill:#eeeeee,stroke:#aaaaaa,color:#777777,stroke-dasharray:4",
}


def render_mermaid(graph: Graph, states: States | None = None) -> str:
    lines = ["flowchart TD", *_render_boxes(graph, (), states or {}), *_render_arrows(graph, ())]
    used = sorted({*(states or {}).values()})
    lines += [f"    classDef {status} {_COLOURS[status]}" for status in used]
    return "\n".join(lines)


def render_text(graph: Graph, states: States | None = None, notes: Notes | None = None) -> str:
    """Render each node below the one that it waits for. A node that waits for several is at the left edge and names them."""
    suffixes = {path: f" {status}" for path, status in (states or {}).items()}
    suffixes |= {path: f"{suffixes.get(path, '')} {note}" for path, note in (notes or {}).items()}
    return "\n".join([graph.name, *_render_branches(graph, (), suffixes, "")])


# -- Mermaid


def _render_boxes(graph: Graph, parent: NodePath, states: States) -> Iterator[str]:
    indent = "    " * (len(parent) + 1)
    for node in graph.nodes:
        path = (*parent, node.index)
        if node.child is None:
            opening, closing = ("[[", "]]") if node.kind is NodeKind.MAP else ("[", "]")
            status = f":::{states[path]}" if path in states else ""
            yield f'{indent}{_mermaid_id(path)}{opening}"{_label(node)}"{closing}{status}'
        else:
            yield f'{indent}subgraph {_mermaid_id(path)}["{_label(node)}"]'
            yield from _render_boxes(node.child, path, states)
            yield f"{indent}end"
            if path in states:
                yield f"{indent}class {_mermaid_id(path)} {states[path]}"


def _render_arrows(graph: Graph, parent: NodePath) -> Iterator[str]:
    for node in graph.nodes:
        label = "" if node.join is Join.ALL else f"|{_join_text(node)}|"
        arrow = "-.->" if node.allow_failed_deps else "-->"
        for dependency in node.waits_for:
            edge = "-.->|ended|" if dependency in node.uncounted else f"{arrow}{label}"
            yield f"    {_mermaid_id((*parent, dependency))} {edge} {_mermaid_id((*parent, node.index))}"
        if node.child is not None:
            yield from _render_arrows(node.child, (*parent, node.index))


def _mermaid_id(path: NodePath) -> str:
    return "n" + "_".join(map(str, path))


def _label(node: Node) -> str:
    """Return the id, and the name of the task or the workflow if it is different."""
    name = node.child.name if node.child else node.terms.task_name if node.terms else node.node_id
    lines = [_escape(node.node_id), *([_escape(name)] if name != node.node_id else [])]
    return "<br/>".join([*lines, *(["for each item"] if node.kind is NodeKind.MAP else [])])


def _escape(text: str) -> str:
    """Write special characters as Mermaid's numeric entities: quotes and brackets would end the label."""
    return "".join(char if char.isalnum() or char in " _-.,:/" else f"#{ord(char)};" for char in text)


# -- text


def _render_branches(graph: Graph, parent: NodePath, notes: Notes, prefix: str) -> Iterator[str]:
    children: dict[int | None, list[int]] = {None: [], **{node.index: [] for node in graph.nodes}}
    for node in graph.nodes:
        children[node.waits_for[0] if len(node.waits_for) == 1 else None].append(node.index)

    def to_stack(indexes: Sequence[int], prefix: str) -> list[tuple[int, str, bool]]:
        return [(index, prefix, index == indexes[-1]) for index in reversed(indexes)]

    stack = to_stack(children[None], prefix)  # not recursion: a chain may have thousands of nodes
    while stack:
        index, line_prefix, is_last = stack.pop()
        node, path = graph.nodes[index], (*parent, index)
        yield f"{line_prefix}{'└─ ' if is_last else '├─ '}{_line(graph, node, notes.get(path))}"
        inner = line_prefix + ("   " if is_last else "│  ")
        inner = inner if len(inner) <= MAX_INDENT else line_prefix
        if node.child is not None:
            yield from _render_branches(node.child, path, notes, f"{inner}╎  ")
        stack += to_stack(children[index], inner)


def _line(graph: Graph, node: Node, note: str | None) -> str:
    def names(indexes: Sequence[int]) -> str:
        return ", ".join(graph.nodes[index].node_id for index in indexes)

    parts = [node.node_id]
    if node.kind is NodeKind.MAP:
        parts.append("(for each item)")
    if node.child is not None and node.child.name != node.node_id:
        parts.append(f"(workflow {node.child.name})")
    if len(node.waits_for) > 1:
        join = "after" if node.join is Join.ALL else f"after {_join_text(node)} of"
        parts.append(f"← {join} {names(node.counted)}")
        if node.awaits:
            parts.append(f"and the end of {names(node.awaits)}")
    if note is not None:
        parts.append(note)
    return " ".join(parts)


def _join_text(node: Node) -> str:
    return "any" if node.join is Join.ANY else f"{node.min_success} of {len(node.counted)}"
