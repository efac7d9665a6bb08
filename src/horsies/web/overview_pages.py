"""The overview, the queues, the workers, the doctor and the audit."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from horsies.ops.api import Ops
from horsies.web.live import Topic
from horsies.web.view import Page, View


async def show_overview(view: View) -> Response:
    return view.render("overview.html", queues=await view.ops.list_queues_async())


async def read_overview(ops: Ops, _params: Mapping[str, str]) -> Mapping[str, Any]:
    return {"queues": await ops.list_queues_async()}


PAGES: Sequence[Page] = (Page("/", show_overview),)
TOPICS: Sequence[Topic] = (Topic("overview", read_overview, {"queues": "live/queues.html"}),)
