"""Schedules: when each is due, and what became of its runs."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from horsies.model.errors import NodeNotFoundError
from horsies.ops.api import Ops
from horsies.schedules.control import ScheduleInfo, ScheduleRun, ScheduleState
from horsies.web.live import RARE_SHARE, Topic
from horsies.web.view import Page, View

PER_PAGE: Final = 100
RECENT_RUNS: Final = 5
HISTORY: Final = 50
NEXT_SLOTS: Final = 10
_ZERO_SECONDS: Final = re.compile(r"(:[0-9]{2}):00$")
_DAYS: Final = re.compile(r"\b(mon|tue|wed|thu|fri|sat|sun)\b")


async def list_schedules(view: View) -> Response:
    return view.render("schedules.html", **await read_schedules(view.ops, view.query))


async def read_schedules(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any]:
    """List a page of schedules. Those that fail come first, then those that an operator has paused."""
    text, page = params.get("text", "").strip(), _page(params)
    stored = [
        info for info in await ops.list_schedules_async() if text.lower() in f"{info.name} {info.task_name}".lower()
    ]
    stored.sort(key=lambda info: (-_rank(info), info.name))
    shown = stored[page * PER_PAGE : (page + 1) * PER_PAGE]
    runs = await ops.list_recent_runs_async([info.name for info in shown], limit=RECENT_RUNS)
    return {
        "schedules": shown,
        "runs": {name: [(run, outcome_of(run)) for run in found] for name, found in runs.items()},
        "total": len(stored),
        "text": text,
        "page": page,
        "has_more": (page + 1) * PER_PAGE < len(stored),
    }


def _rank(info: ScheduleInfo) -> int:
    return 2 if is_failing(info) else int(info.state is ScheduleState.PAUSED)


def is_failing(info: ScheduleInfo) -> bool:
    """Whether it is due, and its last run has failed."""
    return info.state is ScheduleState.ACTIVE and info.failures_in_a_row > 0


def outcome_of(run: ScheduleRun) -> str:
    """Return one word: the status of its task or, without one, why there is none."""
    if run.task_id is None:
        return run.outcome
    return run.task_status or "DELETED"


async def show_schedule(view: View) -> Response:
    data = await read_schedule(view.ops, {"name": view.name})
    if data is None:
        raise NodeNotFoundError(
            f"There is no schedule {view.name[:200]!r}. A scheduler stores the schedules of its app when it starts."
        )
    return view.render("schedule.html", **data)


async def read_schedule(ops: Ops, params: Mapping[str, str]) -> Mapping[str, Any] | None:
    name = params.get("name", "")
    found = [] if "\0" in name else await ops.list_schedules_async(name=name)
    if not found:
        return None
    info = found[0]
    try:
        slots, problem = info.next_slots(NEXT_SLOTS) if info.state is ScheduleState.ACTIVE else [], None
    except ValueError as error:  # a pattern or a zone that this process does not know
        slots, problem = [], str(error)
    runs = await ops.list_schedule_runs_async(name, limit=HISTORY)
    return {
        "info": info,
        "slots": slots,
        "problem": problem,
        "runs": [(run, outcome_of(run)) for run in runs],
    }


def _page(params: Mapping[str, str]) -> int:
    text = params.get("page", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else 0  # noqa: PLR2004 - no page is as far


def pattern_in_words(info: ScheduleInfo) -> str:
    """Say when it is due: `every 5 minutes`, `daily at 03:00`, `Mon, Fri at 09:30`, `cron */5 9-17 * * mon-fri`."""
    text = _ZERO_SECONDS.sub(r"\1", info.pattern_text)
    match info.pattern:
        case {"kind": "cron"}:
            return f"cron {text}"
        case {"kind": "weekly"}:
            return _DAYS.sub(lambda found: found[0].title(), text)
        case _:
            return text


PAGES: Sequence[Page] = (Page("/schedules", list_schedules), Page("/schedules/{name}", show_schedule))
TOPICS: Sequence[Topic] = (
    Topic("schedules", read_schedules, {"schedules": "live/schedules.html"}, share=RARE_SHARE),
    Topic("schedule", read_schedule, {"state": "live/schedule_state.html", "runs": "live/schedule_runs.html"}),
)
FILTERS: Mapping[str, Callable[..., Any]] = {"in_words": pattern_in_words, "is_failing": is_failing}
