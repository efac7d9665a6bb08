"""How commands show what they found: as a table for eyes, or as JSON for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import click

from horsies.model.validation import format_duration

WIDE = 100_000  # characters: what goes into a file or a pipe is not cut or wrapped


def show_json(value: object) -> None:
    """Moments are ISO 8601, durations seconds."""
    click.echo(json.dumps(value, default=_plain, indent=2, ensure_ascii=False))


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Numbers stand to the right. `empty` is said on stderr when there is no row."""
    from rich.console import Console  # noqa: PLC0415 - a worker never shows a table
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    found = list(rows)
    if not found:
        click.echo(empty, err=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        is_number = all(isinstance(row[place], int | float | None) for row in found)
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in found:
        table.add_row(*(Text(shown(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def shown(value: object) -> str:
    """One value as a person reads it; moments in the machine's own zone."""
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
            return ", ".join(shown(part) for part in cast("Sequence[object]", value)) or "-"
        case _:
            return str(value)


def _plain(value: object) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        case set() | frozenset():
            return sorted(cast("set[str]", value))
        case _:
            return str(value)
