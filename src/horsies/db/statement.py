"""Statements and operations: what is sent to the database, written once for blocking and asyncio callers.

An operation is a generator. It yields requests and receives their results as the value of each yield. It never touches a
connection, so the same operation runs on a blocking pool, on an asyncio pool, or on a connection that the caller owns. `driver.py`
executes the requests.

- `Request`: statements that travel together, in one round trip. The result is a list of rows for each of them. They are one
  transaction in any case. A `frame` adds statements that open and close it and set what applies in it; a session that has these
  settings already can do without. Statements `after_commit` travel with the others but run when these are committed, and cannot
  undo them: an error in them is logged. On our own connections only.
- `Copy`: rows in bulk by COPY, as lines (`pipeline.copy_field`) that are generated while earlier ones are being sent. On our own
  connections only.
- `Script`: plain SQL text of several commands, without parameters. Migrations only.

Waiting for a result is not an operation: it takes long and must not hold a connection. See `waiter.py`.
"""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from horsies.db.channels import Channel, waiters_lock
from horsies.model.send_options import SENT_COLUMNS
from horsies.model.task import CLAIM_EXPRESSIONS, MOVED_COLUMNS, NO_PAYLOAD, Claim

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]

_SECTION = re.compile(r"^-- (name|fragment): (\w+)\s*$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SCHEMA = re.compile(r"\{schema(?:_text)?\}")
_COLUMN_LISTS = {
    "moved_columns": ", ".join(MOVED_COLUMNS),
    "sent_columns": ", ".join(SENT_COLUMNS),
    "sent_params": ", ".join(f"%({name})s::{kind}" for name, kind in SENT_COLUMNS.items()),
    "sent_updates": ", ".join(f"{name} = %({name})s::{kind}" for name, kind in SENT_COLUMNS.items()),
    # The trace of a node is that of the start of its workflow.
    "sent_fields": ", ".join(f"{name} {kind}" for name, kind in SENT_COLUMNS.items() if name != "trace"),
    # In the order of the fields, so that `Claim(*row)` is right by construction; the second without the payload.
    "claim_columns": ", ".join(CLAIM_EXPRESSIONS.get(name, name) for name in Claim._fields),
    "held_columns": ", ".join((CLAIM_EXPRESSIONS | NO_PAYLOAD).get(name, name) for name in Claim._fields),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement of a `.sql` file.

    `{schema}` in it stands for the quoted name of the installation's schema, `'{schema_text}'` for the name as a literal. `load` has
    replaced the names of lists of columns (`_COLUMN_LISTS`) and of fragments of the same file.
    """

    name: str
    text: str

    def __call__(self, **params: object) -> "Query":
        arrays = {
            name: to_array(cast("list[object]", value)) for name, value in params.items() if isinstance(value, list)
        }
        return Query(self, params | arrays)

    def for_schema(self, schema: str) -> bytes:
        # Parameters are %-style, so a % in the schema's name is doubled. The names of its channels are hashes of the undoubled name.
        return render(self.text, schema, "%%").encode()


@dataclass(frozen=True, slots=True)
class Query:
    """A statement with its parameters."""

    statement: Statement
    params: Mapping[str, object]


def load(python_file: str) -> Mapping[str, Statement]:
    """Return the statements of the `.sql` file beside this Python file, by name. Each begins with a line `-- name: verb`.

    What several of them contain is written once, before them, after a line `-- fragment: noun`, and stands in them as `{noun}`.
    """
    twin = Path(python_file).with_suffix(".sql")
    head, *parts = _SECTION.split(twin.read_text(encoding="utf-8"))
    if re.sub(r"--.*", "", head).strip():
        raise ValueError(f"{twin.name}: SQL before the first '-- name:' line")
    names = parts[1::3]
    if len(set(names)) != len(names):
        raise ValueError(f"{twin.name}: a name is used twice")
    fragments, statements = dict(_COLUMN_LISTS), dict[str, Statement]()
    for kind, name, written in zip(parts[::3], names, parts[2::3], strict=True):
        # Without comments: the server need not parse them on every call.
        lines = (re.sub(r"\s*-- .*$", "", line).rstrip() for line in written.splitlines())
        text = "\n".join(line for line in lines if line)
        text = _PLACEHOLDER.sub(lambda found: fragments.get(found[1], found[0]), text)
        if kind == "fragment":
            fragments[name] = text
        else:
            statements[name] = Statement(name, text)
    return statements


def to_array(items: Sequence[object]) -> str:
    """Convert to the text of a PostgreSQL array. Ten times as fast as the driver, and a batch has a dozen arrays; our SQL casts them all."""
    elements = [
        '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if isinstance(item, str)
        else "NULL"
        if item is None
        else to_text(item, "an array for PostgreSQL cannot hold")
        for item in items
    ]
    return "{" + ",".join(elements) + "}"


def to_text(value: object, refusal: str = "a parameter for PostgreSQL cannot be") -> str:
    match value:
        case str():
            return value
        case bool():
            return "t" if value else "f"
        case int() | float():
            return str(value)
        case datetime():
            return value.isoformat()
        case _:
            raise TypeError(f"{refusal} a {type(value).__name__}")


@lru_cache(maxsize=1024)
def render(text: str, schema: str, percent: str = "%") -> str:
    """Insert the schema, its channels and its lock in place of their placeholders."""
    written = schema.replace("%", percent)
    for channel in Channel:
        text = text.replace("{" + channel + "_channel}", channel.name_in(schema))
    text = text.replace("{waiters_lock}", str(waiters_lock(schema)))
    names = {"{schema}": '"' + written.replace('"', '""') + '"', "{schema_text}": written.replace("'", "''")}
    return _SCHEMA.sub(lambda match: names[match[0]], text)  # in one pass: a schema's name may look like a placeholder


def render_script(text: str, schema: str) -> str:
    """Render plain SQL of several commands. Its `$$` quotes get a tag that does not occur in the name of the schema."""
    quote, number = "$horsies$", 0
    while quote in schema:
        quote, number = f"$horsies_{number}$", number + 1
    return render(text.replace("$$", quote), schema)


@dataclass(frozen=True, slots=True)
class TransactionFrame:
    """Statements that open and close a transaction (BEGIN plus settings, COMMIT)."""

    opening: Sequence[Query]
    closing: Query


@dataclass(frozen=True, slots=True)
class Request:
    queries: Sequence[Query]
    after_commit: Sequence[Query] = ()
    frame: TransactionFrame | None = None

    @property
    def framed_queries(self) -> Sequence[Query]:
        return [*self.frame.opening, *self.queries, self.frame.closing] if self.frame else self.queries


@dataclass(frozen=True, slots=True)
class Copy:
    statement: Statement
    lines: Iterable[str]


@dataclass(frozen=True, slots=True)
class Script:
    statement: Statement


AnyRequest: TypeAlias = Request | Copy | Script
T = TypeVar("T")
Op: TypeAlias = Generator[AnyRequest, Any, T]


def execute(*queries: Query) -> Op[list[Rows]]:
    """Execute several statements in one round trip; return the rows of each."""
    results: list[Rows] = yield Request(queries)
    return results


def execute_then_notify(query: Query, *, after_commit: Query) -> Op[Rows]:
    """Return the rows of one statement, which is a transaction of its own; run the other after its commit."""
    (result,) = yield Request((query,), (after_commit,))
    return result


def rows(query: Query) -> Op[Rows]:
    """Return the rows of one statement."""
    (result,) = yield Request((query,))
    return result


def one(query: Query) -> Op[Row | None]:
    """Return the only row of a statement, or None."""
    (found,) = yield Request((query,))
    return found[0] if found else None


def copy(statement: Statement, lines: Iterable[str]) -> Op[None]:
    yield Copy(statement, lines)


def script(statement: Statement) -> Op[None]:
    yield Script(statement)


SQL = load(__file__)


def disable_sequential_scans() -> Query:
    """Set, for the rest of a transaction, that few rows among many are found by an index, whatever the statistics say.

    For sessions that are not ours: in our own this setting always applies (`pooler.py`).
    """
    return SQL["disable_sequential_scans"]()


def rows_in_index_order(query: Query) -> Op[Rows]:
    """Return the rows of a read that takes the first rows in the order of an index.

    The planner takes these for few: it would read all of them, and sort.
    """
    _, found, _ = yield from execute(SQL["disable_sorts"](), query, SQL["enable_sorts"]())
    return found


def plan_for_values(query: Query) -> Op[Rows]:
    """Return the rows of a read whose plan depends on its parameters (optional filters), in a transaction of its own."""
    *_, found, _ = yield from execute(SQL["begin_read"](), SQL["force_custom_plans"](), query, SQL["end_read"]())
    return found
