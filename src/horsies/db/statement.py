"""Operations: what a verb says to the database, written once for blocking and asyncio callers.

A verb is a generator. It *asks* (yields a request) and is answered (the value of the yield); it never touches a
connection, so the same verb runs on a blocking pool, on an asyncio pool, or on a connection the caller owns. The
drivers that answer are in `drive.py`.

Requests:

- `Ask`: statements that travel together, in one round trip. The answer is a list of rows for each of them. What is to be said `afterwards`
  travels with them too, but is done when they are committed, and cannot undo them: if it fails, that is logged. On connections of our own only.
  Together they are one transaction in any case; a `frame` says so with statements of its own, which also set what holds in it. A session
  that is ours and was set up so can do without.
- `Copy`: rows in bulk by COPY, as lines (`lines.py`), made while the ones before are on their way. On connections of our own only.
- `Script`: plain SQL text of several commands, without parameters. Migrations only.

Waiting for what others do is no verb: it goes on for long and holds no connection. See `desk.py`.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from horsies.db.channels import Channel, waiters_lock

# --------
# Lists as PostgreSQL writes arrays.
#
# The driver's own way takes each list apart element by element: 120 µs for a hundred ids, and a turn carries a dozen lists. Every array parameter in
# our statements is cast, so plain text serves: 10 µs.


def to_array(items: Sequence[object]) -> str:
    return "{" + ",".join([_element(item) for item in items]) + "}"


def _element(item: object) -> str:
    match item:
        case str():
            return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case None:
            return "NULL"
        case bool():
            return "t" if item else "f"
        case int() | float():
            return str(item)
        case datetime():
            return f'"{item.isoformat()}"'
        case _:
            raise TypeError(f"an array for PostgreSQL cannot hold a {type(item).__name__}")


_SCHEMA = re.compile(r"\{schema(?:_text)?\}")

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement of a `.sql` file; `{schema}` in it stands for the schema of the installation, quoted.

    Where its name is needed inside a literal of a script, it is `'{schema_text}'`.
    """

    name: str
    text: str

    def __call__(self, **params: object) -> "Query":
        lists = {
            name: to_array(cast("list[object]", value)) for name, value in params.items() if isinstance(value, list)
        }
        return Query(self, params | lists)

    def for_schema(self, schema: str) -> bytes:
        return _render_query(self.text, schema)


@lru_cache(maxsize=1024)
def _render_query(text: str, schema: str) -> bytes:
    # Parameters are %-style, and a schema may have a % in it. Its channels are named after what it is called, not after how that is written.
    return _render(text, schema, schema.replace("%", "%%")).encode()


def render(text: str, schema: str) -> str:
    """Put the schema, its channels and its lock where the `.sql` files leave room for them."""
    return _render(text, schema, schema)


def _render(text: str, schema: str, written: str) -> str:
    for channel in Channel:
        text = text.replace("{" + channel + "_channel}", channel.name_in(schema))
    text = text.replace("{waiters_lock}", str(waiters_lock(schema)))
    names = {"{schema}": '"' + written.replace('"', '""') + '"', "{schema_text}": written.replace("'", "''")}
    return _SCHEMA.sub(lambda found: names[found[0]], text)  # in one go: a name may look like one of these


def render_script(text: str, schema: str) -> str:
    """The same for plain SQL of several commands. In it `$$` quotes bodies of functions, which no schema's name may end."""
    quote, number = "$horsies$", 0
    while quote in schema:
        quote, number = f"$horsies_{number}$", number + 1
    return render(text.replace("$$", quote), schema)


@dataclass(frozen=True, slots=True)
class Query:
    """A statement with its parameters."""

    statement: Statement
    params: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TransactionFrame:
    """Of a transaction: what is said before all else, and last."""

    opening: Sequence[Query]
    closing: Query


@dataclass(frozen=True, slots=True)
class Request:
    queries: Sequence[Query]
    after_commit: Sequence[Query] = ()
    frame: TransactionFrame | None = None

    @property
    def spelled_out(self) -> Sequence[Query]:
        """With the frame."""
        return [*self.frame.opening, *self.queries, self.frame.closing] if self.frame else self.queries

    def answers(self, spelled_out: list[Rows]) -> list[Rows]:
        """Without those of the frame."""
        return spelled_out[len(self.frame.opening) : -1] if self.frame else spelled_out

    @property
    def names(self) -> Iterator[str]:
        return (query.statement.name for query in self.spelled_out)


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
    """Several statements in one round trip."""
    answer: list[Rows] = yield Request(queries)
    return answer


def execute_then_notify(query: Query, *, after_commit: Query) -> Op[Rows]:
    """The rows of one statement, which is a transaction of its own or ends one; the other is not part of it."""
    (answer,) = yield Request((query,), (after_commit,))
    return answer


def rows(query: Query) -> Op[Rows]:
    """The rows of one statement."""
    (answer,) = yield from execute(query)
    return answer


def one(query: Query) -> Op[Row | None]:
    """The only row of a statement, or None."""
    found = yield from rows(query)
    return found[0] if found else None


def copy(statement: Statement, lines: Iterable[str]) -> Op[None]:
    yield Copy(statement, lines)


def script(statement: Statement) -> Op[None]:
    yield Script(statement)


# --------
# Reads the `.sql` twins: blocks that begin with `-- name: verb`.

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load(python_file: str) -> Mapping[str, Statement]:
    """The statements of the `.sql` file beside this Python file, by name."""
    twin = Path(python_file).with_suffix(".sql")
    head, *parts = _NAME.split(twin.read_text(encoding="utf-8"))
    if re.sub(r"--.*", "", head).strip():
        raise ValueError(f"{twin.name}: SQL before the first '-- name:' line")
    names, texts = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{twin.name}: a name stands twice")
    return {name: Statement(name, _strip(text)) for name, text in zip(names, texts, strict=True)}


def _strip(text: str) -> str:
    """Comments are for readers of the file; the server need not parse them on every call."""
    lines = (re.sub(r"\s*-- .*$", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)
