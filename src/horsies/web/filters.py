"""Filters of templates: durations, ages, numbers, ids, and texts of unknown origin."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup

from horsies.model.text import printable

NOTHING: Final = "\N{EN DASH}"
SOON_S: Final = 10.0  # an age below this is "just now"
_NOT_IN_PATHS: Final = re.compile(r"[%/\\\x00-\x1f]")  # Starlette's paths have no line ends
_PLAIN: Final = re.compile(r"[\w.~-]*", re.ASCII)
_PLAIN_PATH: Final = re.compile(r"[\w/:@,;=~!$&'()*+.-]*", re.ASCII)
_ID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration(value: float | timedelta | None) -> str:
    """Format seconds or a timedelta with its two largest units: `350 ms`, `1.2 s`, `3 min 4 s`, `2 d 4 h`."""
    if value is None:
        return NOTHING
    seconds = max(0.0, value.total_seconds() if isinstance(value, timedelta) else float(value))
    if seconds < 0.9995:  # noqa: PLR2004 - shown as less than 1000 ms
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 or not seconds else f"{seconds * 1000:.2g} ms"  # noqa: PLR2004
    if seconds < 9.95:  # noqa: PLR2004 - shown with tenths
        return f"{seconds:.1f} s"
    left, parts = round(seconds), list[str]()
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2]))


def milliseconds(value: float | None) -> str:
    """Format milliseconds as `duration` does."""
    return duration(None if value is None else value / 1000)


def count(value: float | None) -> str:
    """Format a number with separators: `12,345`."""
    return NOTHING if value is None else f"{value:,.0f}"


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Format how long ago, or in how long, a time is, in steps that do not change every second. app.js has the same function."""
    if moment is None:
        return "never"
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    text = _coarse(abs(seconds))
    if abs(seconds) < SOON_S:
        return "just now" if seconds >= 0 else "now"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def _coarse(seconds: float) -> str:
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{int(seconds // 10) * 10} s"
    unit, size = next((unit, size) for unit, size in _UNITS if seconds >= size)
    whole = int(seconds // size)
    if unit == "min" or whole >= 10:  # noqa: PLR2004 - the smaller unit would not matter
        return f"{whole} {unit}"
    smaller, small_size = ("min", 60) if unit == "h" else ("h", 3_600)
    rest = int(seconds % size // small_size)
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"


def full_time(moment: datetime) -> str:
    """Format a time with its zone, for titles."""
    # As `strftime` does, in a fifth of its time.
    return f"{moment.isoformat(' ')[:19]} {moment.tzname() or ''}".rstrip()


def short_id(value: str | None) -> str:
    """Shorten an id of a task, workflow or worker to its first and last characters: the first ones alone are only the time."""
    text = str(value or "")
    return f"{text[:8]}…{text[-4:]}" if len(text) > 16 else text  # noqa: PLR2004 - shorter would not be shorter


def short_ids(text: str) -> str:
    """Shorten all ids in a text."""
    return _ID.sub(lambda match: short_id(match[0]), text)


def json_pretty(text: str | None) -> str:
    """Indent JSON. Text that is not JSON, such as a part of it, stays as it is."""
    if text is None:
        return ""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def visible(value: object, *, lines: bool = False) -> str:
    """Show any value as text, without characters that are invisible or change the direction of text: see `printable`."""
    return printable(str(value), lines=lines)


def segment(name: str) -> str:
    """Make a name one part of a path. `url` quotes it again: servers and browsers take an encoded slash, or two dots, for what they stand for."""
    text = _NOT_IN_PATHS.sub(lambda match: f"%{ord(match[0]):02X}", name)
    return text.replace(".", "%2E") if text in {".", ".."} else text


def make_url(prefix: str, path: str, /, **query: object) -> str:
    """Return a link under a prefix, with a query. Parameters that are None or empty are left out; those of a sequence are repeated."""
    if not query:
        return prefix + quote_path(path)
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    if all(isinstance(value, str) and _PLAIN.fullmatch(value) for value in given.values()):
        text = "&".join([f"{name}={value}" for name, value in given.items()])
    else:
        text = urlencode(given, doseq=True, errors="replace")
    return prefix + quote_path(path) + (f"?{text}" if text else "")


def quote_path(path: str) -> str:
    if _PLAIN_PATH.fullmatch(path):  # nearly all are
        return path
    return quote(path, safe="/:@,;=~!$&'()*+", errors="replace")


def code_spans(text: str) -> Markup:
    """Show what is between backticks as code. Everything else is escaped."""
    parts = [Markup.escape(visible(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:  # one without its counterpart
        return Markup("`").join(parts)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def cut(value: object, length: int = 80) -> str:
    """Shorten a text."""
    text = str(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "age": age,
    "code_spans": code_spans,
    "count": count,
    "cut": cut,
    "duration": duration,
    "full_time": full_time,
    "json_pretty": json_pretty,
    "milliseconds": milliseconds,
    "segment": segment,
    "short_id": short_id,
    "short_ids": short_ids,
    "visible": visible,
}
