"""Whatever graph is written, in whatever order: it is built as it was meant."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from horsies import TaskNode, WorkflowDefinitionError, from_node, result_from
from horsies.model.graph import RefMode
from tests.workflows.crawl_app import any_json, app


@st.composite
def edges(draw: st.DrawFn) -> list[dict[int, str]]:
    """For each node those before it that it takes something from, and how."""
    size = draw(st.integers(1, 8))
    ways = st.sampled_from(["waits", "value", "result"])
    return [
        draw(st.dictionaries(st.integers(0, number - 1), ways, max_size=3)) if number else {} for number in range(size)
    ]


def written(graph: list[dict[int, str]]) -> list[TaskNode[Any]]:
    nodes: list[TaskNode[Any]] = []
    for number, taken in enumerate(graph):
        values = [
            from_node(nodes[other]) if way == "value" else result_from(nodes[other])
            for other, way in taken.items()
            if way != "waits"
        ]
        waits_for = [f"n{other}" for other, way in taken.items() if way == "waits"]
        nodes.append(any_json.node(node_id=f"n{number}", waits_for=waits_for)([number, *values]))
    return nodes


@given(graph=edges(), data=st.data())
def test_every_edge_is_kept_and_every_node_comes_after_what_it_waits_for(
    graph: list[dict[int, str]], data: st.DataObject
) -> None:
    nodes = written(graph)
    built = app.workflow("w", data.draw(st.permutations(nodes))).graph
    index = {node.node_id: node.index for node in built.nodes}
    assert [node.index for node in built.nodes] == list(range(len(graph)))
    for number, taken in enumerate(graph):
        node = built.nodes[index[f"n{number}"]]
        assert set(node.waits_for) == {index[f"n{other}"] for other in taken}
        assert all(other < node.index for other in node.waits_for)
        modes = {ref.node: ref.mode for ref in node.refs}
        assert modes == {
            index[f"n{other}"]: RefMode.VALUE if way == "value" else RefMode.RESULT
            for other, way in taken.items()
            if way != "waits"
        }


@given(graph=edges(), data=st.data())
def test_an_edge_back_is_always_found_and_shown_as_a_cycle(graph: list[dict[int, str]], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(graph) - 1))
    chain = list(range(first, len(graph)))
    nodes = [
        any_json.node(node_id=f"n{number}", waits_for=[f"n{other}" for other in _around(graph, chain, number)])(1)
        for number in range(len(graph))
    ]
    try:
        app.workflow("w", nodes)
    except WorkflowDefinitionError as refused:
        [problem] = refused.problems
        path = [part.strip().strip("'") for part in problem.split("the nodes ")[1].split(" wait ")[0].split("→")]
        assert path[0] == path[-1]
        edges_of = {
            f"n{number}": {f"n{other}" for other in _around(graph, chain, number)} for number in range(len(graph))
        }
        assert all(after in edges_of[before] for before, after in pairwise(path))
    else:
        raise AssertionError("it was built")


def _around(graph: list[dict[int, str]], chain: list[int], number: int) -> set[int]:
    """What it waits for, when the nodes of the chain wait for each other in a circle."""
    after = chain[(chain.index(number) + 1) % len(chain)] if number in chain else None
    return {*graph[number], *([after] if after is not None else [])}
