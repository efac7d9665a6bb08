"""Rendering of graphs."""

from horsies import NodeStatus, SubWorkflowNode, each, from_node, result_from
from horsies.workflows.render import render_mermaid, render_text
from tests.workflows.crawl_app import app, count, fetch, links, summarise

page = fetch.node(node_id="page")("a")
found = links.node(node_id="links")(from_node(page))
pages = fetch.map_node(node_id="pages")(each(found))
report = summarise.node(node_id="report", allow_failed_deps=True, waits_for=[pages])([result_from(page)])
first = fetch.node(node_id="first", join="any", waits_for=[report, pages])("b")
inside = fetch.node(node_id="in")("x")
inner = app.workflow("inner", [inside, count.node(node_id="out")(from_node(inside))])
sub = SubWorkflowNode(inner, node_id="sub", waits_for=[first])
spec = app.workflow("crawl", [page, found, pages, report, first, sub])


def test_a_graph_is_rendered_for_mermaid() -> None:
    assert spec.to_mermaid().splitlines() == [
        "flowchart TD",
        '    n0["page<br/>fetch"]',
        '    n1["links"]',
        '    n2[["pages<br/>fetch<br/>for each item"]]',
        '    n3["report<br/>summarise"]',
        '    n4["first<br/>fetch"]',
        '    subgraph n5["sub<br/>inner"]',
        '        n5_0["in<br/>fetch"]',
        '        n5_1["out<br/>count"]',
        "    end",
        "    n0 --> n1",
        "    n1 --> n2",
        "    n0 -.-> n3",
        "    n2 -.-> n3",
        "    n2 -->|any| n4",
        "    n3 -->|any| n4",
        "    n4 --> n5",
        "    n5_0 --> n5_1",
    ]


def test_a_graph_is_rendered_for_a_terminal() -> None:
    assert spec.to_text().splitlines() == [
        "crawl",
        "├─ page",
        "│  └─ links",
        "│     └─ pages (for each item)",
        "├─ report ← after page, pages",
        "└─ first ← after any of pages, report",
        "   └─ sub (workflow inner)",
        "      ╎  └─ in",
        "      ╎     └─ out",
    ]


def test_states_are_shown_where_they_are_known() -> None:
    states = {
        (0,): NodeStatus.COMPLETED,
        (1,): NodeStatus.FAILED,
        (5,): NodeStatus.RUNNING,
        (5, 0): NodeStatus.ENQUEUED,
    }
    drawn = render_mermaid(spec.graph, states).splitlines()
    assert '    n0["page<br/>fetch"]:::COMPLETED' in drawn
    assert '        n5_0["in<br/>fetch"]:::ENQUEUED' in drawn
    assert "    class n5 RUNNING" in drawn
    assert [line.split()[1] for line in drawn if line.startswith("    classDef")] == [
        "COMPLETED",
        "ENQUEUED",
        "FAILED",
        "RUNNING",
    ]
    lines = render_text(spec.graph, states).splitlines()
    assert lines[1:3] == ["├─ page  COMPLETED", "│  └─ links  FAILED"]


def test_a_quorum_says_how_many() -> None:
    two = fetch.node(node_id="two", join="quorum", min_success=1, waits_for=[page, "other"])("b")
    graph = app.workflow("w", [page, fetch.node(node_id="other")("c"), two]).graph
    assert "    n0 -->|1 of 2| n2" in render_mermaid(graph)
    assert render_text(graph).splitlines()[-1] == "└─ two ← after 1 of 2 of page, other"


def test_special_characters_in_names_are_escaped() -> None:
    nasty = fetch.node(node_id='a"]; click <script> #quot; %% é')("x")
    [box] = [line for line in app.workflow("w", [nasty]).to_mermaid().splitlines() if "n0" in line]
    label = box.removeprefix('    n0["').removesuffix('<br/>fetch"]')
    assert label == "a#34;#93;#59; click #60;script#62; #35;quot#59; #37;#37; é"


def test_a_long_chain_is_not_as_wide_as_it_is_long() -> None:
    chain = [fetch.node(node_id="0")("x")]
    for number in range(1, 2_000):
        chain.append(fetch.node(node_id=str(number), waits_for=[chain[-1]])("x"))
    lines = app.workflow("chain", chain).to_text().splitlines()
    assert len(lines) == 2_001
    assert max(map(len, lines)) < 100
