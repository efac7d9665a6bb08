"""Print results as text for people, or as JSON for programs.

Whatever is stored may have been written by anyone: the name of a task, the message of an error. All text goes through `printable` before it is
printed, so that none of it can move the cursor, hide a line or change the direction of writing.

Tables fit the terminal: ids become short prefixes, long texts end with an ellipsis, and the least important columns are left out. In a pipe
or a file, and with `--wide`, nothing is cut.
"""

import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import click
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from horsies.model.text import UNPRINTABLE_IN_LINES, printable
from horsies.model.validation import format_duration

UNLIMITED: Final = 100_000  # characters, or lines: a table in a file or a pipe is neither cut nor wrapped
GAP: Final = 2  # spaces between two columns
MIN_ID: Final = 13  # characters: the milliseconds of an id
MIN_TEXT: Final = 6  # characters
NOTHING: Final = "-"
WIDE: Final = "horsies.wide"


def _remember_wide(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    context.meta[WIDE] = value


wide_option = click.option(
    "--wide", is_flag=True, expose_value=False, callback=_remember_wide,
    help="Print full ids and texts and all columns, even if lines get long.",
)  # fmt: skip


class Styled(NamedTuple):
    """A value of a table, in a colour."""

    value: object
    style: str


@dataclass(frozen=True, slots=True)
class Column:
    """How a column of a table behaves if the terminal is too narrow."""

    heading: str
    drop: int = 0
    """0: it is always shown. Otherwise the columns with the highest numbers are left out first."""
    shrink: int | None = None
    """Its text may be cut down to this many characters."""
    is_id: bool = False
    """Its text may be cut to a prefix that is unique in the table."""


# -- text


def echo(text: str = "", *, err: bool = False) -> None:
    """Print text that may contain what is stored."""
    click.echo(printable(text, lines=True), err=err)


def to_text(value: object) -> str:
    """Format one value for people, on one line, with times in the machine's time zone."""
    match value:
        case None:
            return NOTHING
        case datetime():
            return _to_local(value).strftime("%Y-%m-%d %H:%M:%S%z")
        case timedelta():
            return format_duration(value.total_seconds())
        case float():
            return f"{value:.1f}"
        case list() | tuple():
            return ", ".join(to_text(part) for part in cast("Sequence[object]", value)) or NOTHING
        case _:
            return printable(str(value))


def _to_local(time: datetime) -> datetime:
    try:
        return time.astimezone()
    except OverflowError:  # at the end of the range, such as infinity in the database
        return time


def to_age(time: datetime | None, now: datetime) -> str | None:
    """Format how long ago something was; None if it was never. Use the database's clock as `now`."""
    return None if time is None else format_duration(max(0.0, (now - time).total_seconds()))


def counts_text(counts: Mapping[Any, int]) -> str:
    """Format for example `2 FAILED, 1 RUNNING`."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def cut(text: str, width: int) -> str:
    """Shorten a text to this many cells of a terminal."""
    if cell_len(text) <= width:
        return text
    return f"{(chop_cells(text, max(1, width - 1)) or [''])[0]}…"


# -- JSON


def show_json(value: object, *, indent: int | None = 2) -> None:
    """Print JSON, with times in ISO 8601 and durations in seconds."""
    try:
        text = json.dumps(value, default=_to_json, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:  # JSON has no infinity, but a column of a hand-written row may
        text = json.dumps(_finite(value), indent=indent, ensure_ascii=False)
    # Within strings of JSON: no other part has such characters, except the line ends of `indent`.
    click.echo(UNPRINTABLE_IN_LINES.sub(lambda match: json.dumps(match[0])[1:-1], text))


def _finite(value: Any) -> Any:
    """Return JSON values with null for each number that is not finite."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str() | int() | None:
            return value
        case dict():
            return {str(name): _finite(each) for name, each in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_finite(each) for each in cast("Sequence[Any]", value)]
        case _:
            return _finite(_to_json(value))


def _to_json(value: object) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _ if is_dataclass(value) and not isinstance(value, type):
            # Not `asdict`: it fails for a `Counter`.
            return {field.name: getattr(value, field.name) for field in fields(value)}
        case Mapping():
            return dict(cast("Mapping[str, object]", value))
        case set() | frozenset():
            return sorted(cast("set[str]", value))
        case _:
            return str(value)


# -- lines, for a terminal of this size


def terminal_size() -> tuple[int, int]:
    """Return how many columns and lines the output may have."""
    context = click.get_current_context(silent=True)
    if not sys.stdout.isatty() or (context is not None and context.meta.get(WIDE)):
        return UNLIMITED, UNLIMITED
    size = shutil.get_terminal_size()
    return size.columns, size.lines


def show_lines(lines: Iterable[Text]) -> None:
    console = Console(width=UNLIMITED, highlight=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()  # a pipe would get nothing until its buffer is full


def wrap(prefix: str, text: str, width: int, style: str = "") -> list[Text]:
    """Return the text, wrapped between words, after a prefix in this style. Later lines are indented by as much."""
    room = max(20, width - len(prefix))
    wrapped = Text(printable(text)).wrap(Console(width=room), room)
    starts = [Text(prefix, style), *(Text(" " * len(prefix)) for _ in wrapped[1:])]
    return [start.append_text(line) for start, line in zip(starts, wrapped, strict=True)] or [Text(prefix, style)]


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values below each other."""
    width, longest = terminal_size()[0], max(map(len, facts), default=0)
    for name, value in facts.items():
        show_lines(wrap(f"{name:<{longest + GAP}}", to_text(value), width))


def show_paused(kind: str, name: str, *, is_paused: bool, as_json: bool) -> None:
    """Print whether a queue or a schedule is paused now."""
    if as_json:
        show_json({"name": name, "is_paused": is_paused})
    else:
        echo(f"{kind} {name!r} is {'paused' if is_paused else 'active'}")


# -- tables


def show_table(headings: Sequence[str | Column], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table. If there is no row, print `empty` on stderr."""
    show_table_lines(table_lines(headings, rows, terminal_size()[0]), empty=empty)


def show_table_lines(lines: Sequence[Text], *, empty: str) -> None:
    if lines:
        show_lines(lines)
    else:
        click.echo(empty, err=True)


def table_lines(headings: Sequence[str | Column], rows: Iterable[Sequence[object]], width: int) -> list[Text]:
    """Return the lines of a table that is at most as wide as this, with numbers aligned to the right; none if there is no row."""
    columns = [Column(heading) if isinstance(heading, str) else heading for heading in headings]
    values = [[cell if isinstance(cell, Styled) else Styled(cell, "") for cell in row] for row in rows]
    if not values:
        return []
    texts = [[to_text(cell.value) for cell in row] for row in values]
    is_number = [all(isinstance(row[at].value, int | float | None) for row in values) for at in range(len(columns))]
    widths = _fit(columns, texts, width)

    def line(cells: Sequence[str], styles: Sequence[str]) -> Text:
        text = Text()
        for at, room in widths.items():
            shown = cells[at][:room] if columns[at].is_id else cut(cells[at], room)
            padding = " " * (room - cell_len(shown))
            text.append(" " * GAP if len(text) else "")
            text.append(padding if is_number[at] else "").append(shown, styles[at]).append(
                "" if is_number[at] else padding
            )
        text.rstrip()
        return text

    heading = line([column.heading for column in columns], ["bold"] * len(columns))
    return [heading, *(line(row, [cell.style for cell in styled]) for row, styled in zip(texts, values, strict=True))]


def _fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """Return the columns that are shown, by position, and how wide each one is."""
    wanted = [max([len(column.heading), *(cell_len(row[at]) for row in rows)]) for at, column in enumerate(columns)]
    widths = dict(enumerate(wanted))
    if _spare(widths, width) >= 0:
        return widths
    widths = {at: _least_width(column, [row[at] for row in rows], wanted[at]) for at, column in enumerate(columns)}
    is_empty = [all(row[at] == NOTHING for row in rows) for at in range(len(columns))]
    for at in sorted(widths, key=lambda at: (is_empty[at], columns[at].drop), reverse=True):
        if columns[at].drop and _spare(widths, width) < 0:
            del widths[at]
    # One character at a time, so that all that were cut grow alike.
    while growing := [at for at in widths if widths[at] < wanted[at] and not columns[at].is_id][
        : max(0, _spare(widths, width))
    ]:
        for at in growing:
            widths[at] += 1
    # Names may be longer than a terminal is wide.
    while _spare(widths, width) < 0 and max(widths.values()) > MIN_TEXT:
        widths[max(widths, key=lambda at: widths[at])] -= 1
    return widths


def _spare(widths: Mapping[int, int], width: int) -> int:
    """Return how many characters are left beside these columns."""
    return width - sum(widths.values()) - GAP * (len(widths) - 1)


def _least_width(column: Column, texts: Sequence[str], wanted: int) -> int:
    """Return the width that is enough for a column of a narrow table."""
    if column.is_id:
        return min(wanted, max(_unique_length(texts), len(column.heading)))
    return wanted if column.shrink is None else min(wanted, max(column.shrink, len(column.heading)))


def _unique_length(ids: Sequence[str]) -> int:
    """Return how many characters tell these ids apart."""
    different = sorted(set(ids))
    return max([MIN_ID, *(_common_length(one, other) + 1 for one, other in pairwise(different))])


def _common_length(one: str, other: str) -> int:
    return next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), len(one))
