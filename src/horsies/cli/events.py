"""`horsies events`: what has happened lately, and what happens."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
from rich.text import Text

from horsies.app import Horsies
from horsies.cli.options import TimeParameter, database_command, parse_time, to_absolute
from horsies.cli.output import MIN_ID, UNLIMITED, cut, echo, show_json, show_lines, terminal_size, to_text, wide_option
from horsies.model.database_url import mask_passwords
from horsies.model.errors import BrokerError
from horsies.model.validation import format_duration
from horsies.ops.events import Event

INTERVAL_S: Final = 1.0
OVERLAP: Final = timedelta(seconds=3)  # what ended before others may be committed after them
MAX_EVENTS: Final = 2_000  # between two looks
STYLES: Final = {"FAILED": "red", "DIED": "bold red", "EXPIRED": "yellow", "CANCELLED": "yellow", "ACTION": "cyan"}


@database_command(
    click.command,
    click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C."),
    click.option("--since", type=parse_time, default="10m", show_default=True, metavar="WHEN", help="The time to begin with: 90s, 2h, or a date and time."),
    click.option("--failed", "failures", is_flag=True, help="Only failed tasks and workflows, and workers that died."),
    click.option("--task", "task_name", metavar="NAME", help="Only tasks of this name."),
    click.option("--queue", "queue_name", metavar="NAME", help="Only tasks of this queue."),
    click.option("--limit", type=click.IntRange(1, MAX_EVENTS), default=50, show_default=True, help="The newest of those that have happened already."),
    wide_option,
    argument=True,
)  # fmt: skip
def events(target: Horsies, *, follow: bool, since: TimeParameter, limit: int, as_json: bool, **filters: Any) -> None:
    """List what has happened, oldest first: tasks and workflows that ended, workers that started or died, and what operators did.

    With --follow, the command goes on with what happens, also after an outage of the database. With --follow --json, each line is an event.

    \b
    horsies events shop:app --since 1h --failed
    horsies events --follow --queue mail
    """
    begin = to_absolute(since, target.ops.read_clock())
    found = target.ops.list_events(since=begin, limit=limit, **filters)  # pyright: ignore[reportArgumentType] - a time was given
    if not follow:
        if as_json:
            show_json({"events": found})
        elif found:
            _show(found, as_json=False)
        else:
            click.echo("nothing has happened in this time", err=True)
        return
    _show(found, as_json=as_json)
    with suppress(KeyboardInterrupt):
        for new in _new_events(target, found, filters):
            _show(new, as_json=as_json)


def _new_events(target: Horsies, shown: Sequence[Event], filters: dict[str, Any]) -> Iterator[Sequence[Event]]:
    """Yield what happens, in the order in which it is seen. An event that is committed late is not lost, and none comes twice."""
    seen = {_key(event): event.at for event in shown}
    until = max([target.ops.read_clock() - OVERLAP, *seen.values()])
    is_out = False
    while True:
        time.sleep(INTERVAL_S)
        try:
            found = target.ops.list_events(since=until - OVERLAP, limit=MAX_EVENTS, **filters)
        except BrokerError as error:
            if not is_out:
                echo(f"no answer from the database, trying again: {mask_passwords(str(error))}", err=True)
            is_out = True
            continue
        is_out = False
        new = [event for event in found if _key(event) not in seen]
        if len(new) == MAX_EVENTS:
            echo(f"more than {MAX_EVENTS} events at once: the older ones are left out", err=True)
        until = max([until, *(event.at for event in found)])
        seen = {key: at for key, at in seen.items() if at >= until - OVERLAP} | {_key(event): event.at for event in new}
        yield new


def _key(event: Event) -> object:
    return event.kind, event.id, event.at, event.outcome


def _show(found: Sequence[Event], *, as_json: bool) -> None:
    if as_json:
        for event in found:
            show_json(event, indent=None)
    else:
        width = terminal_size()[0]
        show_lines(_line(event, width) for event in found)


def _line(event: Event, width: int) -> Text:
    """Format an event on one line: time, outcome, id, and what it is about."""
    at, event_id, name = to_text(event.at), event.id, to_text(event.name)
    if width != UNLIMITED:
        today, _, time_of_day = at.partition(" ")
        at = time_of_day if today == to_text(datetime.now(UTC)).partition(" ")[0] else at
        event_id = event_id[:MIN_ID]
    details = ": ".join(to_text(each) for each in (event.error_code, event.message) if each)
    match event.kind:
        case "task":
            words = f"{name}: {details}" if details else name
        case "action":
            words = f"{details}: {name}"
        case kind:
            words = f"{kind} {name}" + (f": {details}" if details else "")
    took = "" if event.took_s is None else f"{format_duration(event.took_s)}  "
    start = Text(f"{at}  ").append(f"{event.outcome:<9}", STYLES.get(event.outcome, ""))
    return start.append(f"  {cut(f'{event_id}  {took}{words}', max(20, width - start.cell_len - 2))}")
