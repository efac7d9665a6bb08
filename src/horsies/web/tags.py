"""Small parts of pages that stand in each row of a list: links, times, statuses and buttons. Templates have them as `m`.

They are functions, because a list has hundreds of them and a macro of a template takes ten times as long. Every text is escaped here.
"""
# ruff: noqa: S704 - what `Markup` gets is escaped here

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Final

from markupsafe import Markup

from horsies.web.filters import NOTHING, age, count, cut, full_time, make_url, milliseconds, segment, short_id, visible

_SIGNS: Final[Mapping[str, str]] = {
    "COMPLETED": "✓", "FAILED": "✕", "EXPIRED": "✕", "CANCELLED": NOTHING, "SKIPPED": "»", "MISSED": "!", "RUNNING": "▶", "DELETED": "?",
}  # fmt: skip
_TITLE: Final = 300  # characters


def _shown(text: object, length: int) -> str:
    return escape(cut(visible(text), length))


def status(value: object, text: object = None) -> Markup:
    """Return a badge."""
    kind = cut(str(value).lower().replace(" ", "-"), 20)
    return Markup(f'<span class="badge badge-{escape(kind)}">{_shown(text or value, 40)}</span>')


def time(moment: datetime | None, now: datetime | None = None, never: str = "never") -> Markup:
    """Return how long ago a time is, or in how long, with all of it as a title."""
    if moment is None:
        return Markup(f'<span class="faint">{escape(never)}</span>')
    return Markup(
        f'<time datetime="{moment.isoformat()}" title="{escape(full_time(moment))}">{age(moment, now)}</time>'
    )


def clock(moment: datetime) -> Markup:
    """Return the hour and minute of a time; app.js shows them in the zone of the browser."""
    return Markup(
        f'<time data-clock datetime="{moment.isoformat()}" title="{escape(full_time(moment))}">{moment.isoformat()[11:16]}</time>'
    )


def empty(text: str, hint: str | None = None) -> Markup:
    """Say that a list is empty, and what helps."""
    more = f"<span>{escape(hint)}</span>" if hint else ""
    return Markup(f'<p class="empty"><strong>{escape(text)}</strong>{more}</p>')


def copy(text: str, label: str = "Copy") -> Markup:
    """Return a button that copies a text; only with JavaScript."""
    return Markup(f'<button type="button" class="copy js-only" data-copy="{escape(text)}">{escape(label)}</button>')


def numbers(values: Sequence[float | None], *, are_ms: bool = False) -> Markup:
    """Return cells of a table with numbers, or with durations in milliseconds."""
    texts = [milliseconds(value) for value in values] if are_ms else [count(value) for value in values]
    return Markup("".join([f'<td class="number">{text}</td>' for text in texts]))


class Tags:
    """All of them, with the links of a dashboard under this prefix."""

    status = staticmethod(status)
    time = staticmethod(time)
    clock = staticmethod(clock)
    empty = staticmethod(empty)
    copy = staticmethod(copy)
    numbers = staticmethod(numbers)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def _url(self, path: str, **query: object) -> str:
        return escape(make_url(self._prefix, path, **query))

    def _by_id(self, path: str, value: str, text: str | None) -> Markup:
        shown = _shown(text, 60) if text else f"<code>{escape(short_id(value))}</code>"
        return Markup(f'<a class="name" href="{self._url(path + value)}" title="{escape(value)}">{shown}</a>')

    def _by_name(self, url: str, name: str) -> Markup:
        text = visible(name)
        shown = escape(cut(text, 60)) or "(no name)"
        return Markup(f'<a class="name" href="{url}" title="{escape(cut(text, _TITLE))}">{shown}</a>')

    def task_link(self, task_id: str, text: str | None = None) -> Markup:
        return self._by_id("/tasks/", task_id, text)

    def workflow_link(self, workflow_id: str, text: str | None = None) -> Markup:
        return self._by_id("/workflows/", workflow_id, text)

    def worker_link(self, worker_id: str, text: str | None = None) -> Markup:
        return self._by_id("/workers/", worker_id, text)

    def queue_link(self, name: str) -> Markup:
        return self._by_name(self._url(f"/queues/{segment(name)}"), name)

    def schedule_link(self, name: str) -> Markup:
        return self._by_name(self._url(f"/schedules/{segment(name)}"), name)

    def task_name_link(self, name: str) -> Markup:
        """Return a link to the tasks of this name."""
        return self._by_name(self._url("/tasks", task_name=name), name)

    def live_act(
        self,
        action: str,
        label: str,
        name: str,
        value: str,
        danger: bool = False,  # noqa: FBT001, FBT002 - templates call it
        confirm: str | None = None,
    ) -> Markup:
        """Return the button of an action with one field. It belongs to the form that base.html has for operators, and is hidden for others."""
        kind = "operator danger" if danger else "operator"
        question = f' data-confirm="{escape(confirm)}"' if confirm else ""
        return Markup(
            f'<button class="{kind}" form="act" formaction="{self._url(f"/actions/{action}")}" name="{escape(name)}" value="{escape(value)}"{question}>'
            f"{escape(label)}</button>"
        )

    def run_sign(self, task_id: str | None, outcome: str, at: datetime) -> Markup:
        """Return one of the last runs of a schedule as a sign, which has its words for those that do not see it."""
        words = f"{_shown(outcome, 40)}, {escape(full_time(at))}"
        sign = f'<span aria-hidden="true">{_SIGNS.get(outcome, "○")}</span><span class="hidden">{words}</span>'
        kind = f'class="run is-{escape(cut(outcome.lower(), 20))}" title="{words}"'
        if task_id and outcome != "DELETED":
            return Markup(f'<a {kind} href="{self._url(f"/tasks/{task_id}")}">{sign}</a>')
        return Markup(f"<span {kind}>{sign}</span>")
