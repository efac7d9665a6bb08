"""Workflows: the list of runs, and a run with its graph and its nodes.

The graph is drawn by `static/graph.js`: what its nodes are is read once, from `/workflows/{id}/graph`; how far they are is a live fragment of a few
kilobytes, with one letter for each node. The table of nodes has the same without scripts.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import Graph, Join, Node, NodeKind, NodeStatus, WorkflowStatus
from horsies.ops.api import Ops
from horsies.tasks.ids import to_workflow_id
from horsies.web.actions import FormError
from horsies.web.filters import cut, visible
from horsies.web.live import Topic
from horsies.web.view import Page, View
from horsies.workflows.inspect import MAX_COUNTED, NodeRow, RunState

MAX_DRAWN: Final = MAX_COUNTED
"""Nodes of a graph: a larger one is only listed."""
NODES_PER_PAGE: Final = 100
RUNS_PER_PAGE: Final = 50
MAX_INNER_SHOWN: Final = 20  # paused sub-workflows that are named

PERIODS: Final[Mapping[str, timedelta]] = {
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
LIVE: Final = (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED)
ENDED: Final = (WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)

# -- the list


async def list_workflows(view: View) -> Response:
    data = await read_workflows(view.ops, view.query)
    return view.render("workflows.html", **data, periods=PERIODS, statuses=("LIVE", *LIVE, *ENDED))


async def read_workflows(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any]:
    since = None
    if period := _text(params, "period"):
        if period not in PERIODS:
            raise FormError(f"period is one of {', '.join(PERIODS)}")
        since = await ops.read_clock_async() - PERIODS[period]
    after = _text(params, "after")
    try:
        page = await ops.list_workflows_async(
            statuses=_run_statuses(_text(params, "status")),
            name=_text(params, "name"),
            error_code=_text(params, "error_code"),
            message=_text(params, "message"),
            since=since,
            limit=RUNS_PER_PAGE,
            after=after and _workflow_id(after),
        )
    except ValueError as error:
        raise FormError(str(error)) from error
    names = ("status", "name", "error_code", "message", "period")
    given = {name: _text(params, name) for name in names}
    return {"page": page, "given": given, "is_filtered": any(given.values()), "after": after}


def _run_statuses(text: str | None) -> Sequence[WorkflowStatus]:
    if text is None:
        return ()
    if text == "LIVE":
        return LIVE
    try:
        return (WorkflowStatus(text),)
    except ValueError:
        raise FormError(f"status is one of LIVE, {', '.join(WorkflowStatus)}") from None


def _text(params: Mapping[str, str], name: str) -> str | None:
    return params.get(name, "").strip() or None


# -- one run


async def show_workflow(view: View) -> Response:
    workflow_id = _workflow_id(view.path_params["workflow_id"])
    data = await read_workflow(view.ops, {**view.query, "id": workflow_id})
    if data is None:
        raise NodeNotFoundError(
            f"There is no workflow {workflow_id}. It may have been deleted after its retention time."
        )
    return view.render("workflow.html", **data)


async def read_workflow(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any] | None:
    workflow_id = _workflow_id(params.get("id", ""))
    state = await ops.get_workflow_state_async(workflow_id)
    if state is None:
        return None
    status, text, first = _text(params, "status"), _text(params, "text"), _number(params, "first")
    try:
        statuses = [NodeStatus(status)] if status else []
    except ValueError:
        raise FormError(f"status is one of {', '.join(NodeStatus)}") from None
    page = await ops.list_workflow_nodes_async(
        workflow_id, statuses=statuses, text=text, first=first, limit=NODES_PER_PAGE
    )
    return {
        "state": state,
        "run": state.summary.run,
        "counts": state.counts,
        "failed": await _first_failure(ops, state),
        "paused_parts": _paused_parts(state),
        "nodes": page,
        "given": {"status": status, "text": text},
        "is_filtered": bool(status or text or first),
        "first": first,
        "graph_states": _states_text(state),
        "is_drawn": not state.is_map and len(state.letters) < MAX_DRAWN,
    }


async def _first_failure(ops: Ops, state: RunState) -> NodeRow | None:
    """Return the node that is likely the cause."""
    if NodeStatus.FAILED not in state.counts:
        return None
    page = await ops.list_workflow_nodes_async(state.summary.run.id, statuses=[NodeStatus.FAILED], limit=1)
    return next(iter(page.nodes), None)


def _paused_parts(state: RunState) -> Sequence[str]:
    """Return the ids of sub-workflows that are paused by themselves."""
    paused = [part.workflow_id for part in state.inner.values() if part.status is WorkflowStatus.PAUSED]
    return paused[:MAX_INNER_SHOWN]


def _states_text(state: RunState) -> str:
    """Return what the drawn graph shows of its nodes, as `graph.js` reads it."""
    inner = {
        index: {"status": part.status, "left": part.left, "counts": part.counts} for index, part in state.inner.items()
    }
    return json.dumps({"letters": state.letters, "inner": inner}, separators=(",", ":"))


async def show_graph(view: View) -> Response:
    """Describe the nodes of a run as JSON."""
    workflow_id = _workflow_id(view.path_params["workflow_id"])
    state = await view.ops.get_workflow_state_async(workflow_id)
    if state is None or state.is_map or len(state.letters) >= MAX_DRAWN:
        raise HTTPException(404)
    graph, _ = await view.ops.get_workflow_graph_async(workflow_id)
    return JSONResponse({"nodes": [_to_json(graph, node) for node in graph.nodes]})


def _to_json(graph: Graph, node: Node) -> Sequence[object]:
    """Return the name, the kind, what it runs, what it waits for, which of that only has to end, and how much of it is needed."""
    match node.kind:
        case NodeKind.WORKFLOW:
            runs = node.child.name if node.child else ""
        case NodeKind.TASK | NodeKind.MAP:
            runs = node.terms.task_name if node.terms else ""
    counted = len(node.counted)
    needed = {Join.ALL: "", Join.ANY: f"any of {counted}", Join.QUORUM: f"{node.min_success} of {counted}"}[node.join]
    # A row that was written by hand may name nodes that do not exist.
    before = [index for index in node.waits_for if 0 <= index < len(graph.nodes)]
    soft = before if node.allow_failed_deps else [index for index in before if index in node.uncounted]
    return cut(visible(node.node_id), 120), node.kind, cut(visible(runs), 120), before, soft, needed


async def open_node(view: View) -> Response:
    """Redirect to the task of a node, or to the run of a sub-workflow or map; if there is none yet, to its row in the list of nodes."""
    workflow_id, index = _workflow_id(view.path_params["workflow_id"]), _number(view.path_params, "index")
    page = await view.ops.list_workflow_nodes_async(workflow_id, first=index, limit=1)
    if not page.nodes or page.nodes[0].index != index:
        raise HTTPException(404)
    node = page.nodes[0]
    if node.task_id is not None:
        return RedirectResponse(view.url(f"/tasks/{node.task_id}"), 303)
    if node.child_id is not None and await view.ops.get_workflow_summary_async(node.child_id) is not None:
        return RedirectResponse(view.url(f"/workflows/{node.child_id}"), 303)
    return RedirectResponse(view.url(f"/workflows/{workflow_id}", first=index) + "#nodes", 303)


def _workflow_id(text: str) -> str:
    try:
        return to_workflow_id(text)
    except ValueError:
        raise HTTPException(404) from None


def _number(params: Mapping[str, str], name: str) -> int:
    text = params.get(name) or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 9:  # noqa: PLR2004 - no index is larger
        raise FormError(f"{name} is not a number")
    return int(text)


async def _read_live_runs(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any] | None:
    try:
        return await read_workflows(ops, params)
    except FormError:  # not from a page of ours
        return None


async def _read_live_run(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any] | None:
    try:
        return await read_workflow(ops, params)
    except (FormError, HTTPException):
        return None


PAGES: Sequence[Page] = (
    Page("/workflows", list_workflows),
    Page("/workflows/{workflow_id}", show_workflow),
    Page("/workflows/{workflow_id}/graph", show_graph),
    Page("/workflows/{workflow_id}/nodes/{index}", open_node),
)
TOPICS: Sequence[Topic] = (
    Topic("workflows", _read_live_runs, {"runs": "live/workflow_runs.html"}),
    Topic(
        "workflow",
        _read_live_run,
        {
            "state": "live/workflow_state.html",
            "graph": "live/workflow_graph.html",
            "nodes": "live/workflow_nodes.html",
        },
    ),
)
