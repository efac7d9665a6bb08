"""Print results as a table for people, or as JSON for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import click

from horsies.model.validation import format_duration

UNLIMITED_WIDTH = 100_000  # characters: a table in a file or a pipe is neither cut nor wrapped


def show_json(value: object) -> None:
    """Print JSON, with times in ISO 8601 and durations in seconds."""
    click.echo(json.dumps(value, default=_to_json, indent=2, ensure_ascii=False))


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table with numbers aligned to the right. If there is no row, print `empty` on stderr."""
    from rich.console import Console  # noqa: PLC0415 - a worker does not need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = list(rows)
    if not cells:
        click.echo(empty, err=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, heading in enumerate(headings):
        is_number = all(isinstance(row[column], int | float | None) for row in cells)
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(to_text(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else UNLIMITED_WIDTH).print(table)


def show_paused(kind: str, name: str, *, is_paused: bool, as_json: bool) -> None:
    """Print whether a queue or a schedule is paused now."""
    if as_json:
        show_json({"name": name, "is_paused": is_paused})
    else:
        click.echo(f"{kind} {name!r} is {'paused' if is_paused else 'not paused'}")


def to_text(value: object) -> str:
    """Format one value for people, times in the machine's time zone."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        case timedelta():
            return format_duration(value.total_seconds())
        case float():
            return f"{value:.1f}"
        case list() | tuple():
            return ", ".join(to_text(part) for part in cast("Sequence[object]", value)) or "-"
        case _:
            return str(value)


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
