"""Statements on one of our connections: a batch is sent in one piece, and its results are returned when all are there.

This calls libpq directly. The driver's cursors take more time than the server does for most of our statements: 0.1 ms per send, 0.2 ms
per batch. Here a statement is its text and its parameters as text, which is enough because every parameter is cast in the SQL.
The driver still opens the connections and converts results and errors.

A session that is ours (see `pooler.py`) has `prepare_threshold` set. In it statements are prepared at first use. A name counts as
prepared only after a batch without errors. Names are never reused, so a statement that was prepared in a failed batch does no harm.

In a session that is not ours every transaction begins with the settings that our statements depend on (`pooler.PINNED`), local to it.

Nothing here waits: `LoopConnection` waits on a worker's event loop, `driver.py` for all others.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count, islice
from typing import TypeAlias, cast

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from horsies.db import faults
from horsies.db.pooler import PINNED, require_utf8, set_locally
from horsies.db.statement import Query, Request, Rows, Statement, render, to_text

AnyConnection: TypeAlias = psycopg.Connection | psycopg.AsyncConnection

PIN = Statement("pin_settings", set_locally(PINNED))()
COPY_LINES_AT_ONCE = 1_000
PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")

log = logging.getLogger("horsies.db")

_BEGIN = re.compile(r"begin\b")
_END = re.compile(r"(commit|rollback)\b")
_FAILED = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


class Pipeline:
    """Sends batches to one connection, which must be in pipeline mode, and collects their results."""

    def __init__(self, connection: AnyConnection) -> None:
        require_utf8(connection)  # a pool has not checked it
        self.needs_frames = True  # unless the settings of the frames apply to the session
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared: dict[str, bytes] = {}
        self._name_numbers = count(1)
        # Of the batch under way:
        self._request = Request(())
        self._newly_prepared: dict[str, bytes] = {}
        self._sent: list[tuple[Query, bool]] = []  # whether the result of a PREPARE comes before that of the statement
        self._results: list[pq.abc.PGresult] = []
        self._query_count = 0  # how many of those sent come before the commit
        self._main_count = 0  # how many of the results belong to them
        self._pending_syncs = 0  # each part that is committed by itself ends with a sync

    def send(self, request: Request, schema: str) -> None:
        if faults.planted:
            faults.raise_planted(self._connection, request.framed_queries, "before")
        queries, after_commit = request.queries, request.after_commit
        is_ours = self._connection.prepare_threshold is not None
        if not is_ours or (request.frame and self.needs_frames):
            queries, after_commit = self._frame_and_pin(request, is_ours=is_ours)
        # Encode everything before sending anything: an error in between would leave half a batch to run with the next one.
        parts = [[(query, *_encode(query, schema)) for query in queries]]
        if after_commit:
            parts.append([(query, *_encode(query, schema)) for query in after_commit])
        self._request, self._newly_prepared, self._sent, self._results, self._main_count = request, {}, [], [], 0
        for part in parts:
            for query, text, values in part:
                name = self._prepared.get(text) or self._newly_prepared.get(text)
                self._sent.append((query, is_ours and name is None))
                if not is_ours:
                    self._pgconn.send_query_params(text.encode(), values)
                    continue
                if name is None:
                    name = self._newly_prepared[text] = b"horsies_%d" % next(self._name_numbers)
                    self._pgconn.send_prepare(name, text.encode())
                self._pgconn.send_query_prepared(name, values)
            self._pgconn.pipeline_sync()
        self._query_count, self._pending_syncs = len(queries), len(parts)

    def _frame_and_pin(self, request: Request, *, is_ours: bool) -> tuple[Sequence[Query], Sequence[Query]]:
        queries = request.framed_queries if self.needs_frames else request.queries
        if is_ours:
            return queries, request.after_commit
        first = queries[0].statement.text if queries else ""
        if not _END.match(first):  # its transaction may have failed
            at = 1 if _BEGIN.match(first) else 0  # the isolation level must be set before any query
            queries = [*queries[:at], PIN, *queries[at:]]
        return queries, request.after_commit and [PIN, *request.after_commit]

    def receive(self) -> list[Rows] | None:
        """Read what has arrived; also when no batch is under way, because the server may send messages of its own.

        Return the rows of each statement, or raise the first error, once all results are there; None before.
        """
        try:
            self._pgconn.consume_input()
            while self._pending_syncs and not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:  # between two statements
                    if self._pgconn.status == pq.ConnStatus.BAD:
                        raise psycopg.OperationalError("the connection was lost")  # noqa: TRY301 - the server may say more
                elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._main_count = self._main_count or len(self._results)
                    self._pending_syncs -= 1
                    if not self._pending_syncs:
                        return self._to_rows_of_each()
                else:
                    self._results.append(result)
        except psycopg.OperationalError:
            # The server's reason for closing the connection says more than the loss itself.
            if failed := [result for result in self._results if result.status in _FAILED]:
                raise error_from_result(failed[0]) from None
            raise
        return None

    def _to_rows_of_each(self) -> list[Rows]:
        results, after_commit = self._results[: self._main_count], self._results[self._main_count :]
        self._results = []
        if failed := [result for result in results if result.status in _FAILED]:
            raise error_from_result(failed[0])  # that of the commit is the last
        rows_of_each: list[Rows] = []
        transformer = Transformer(self._connection)
        in_order = iter(results)
        for query, has_prepare in self._sent[: self._query_count]:
            if has_prepare:
                next(in_order)
            result = next(in_order)
            rows: Rows = []
            if result.nfields:
                transformer.set_pgresult(result)
                rows = cast("Rows", transformer.load_rows(0, result.ntuples, cast("Callable[..., object]", tuple)))
            if query is not PIN:
                rows_of_each.append(rows)
        if failed := [result for result in after_commit if result.status in _FAILED]:
            # What was requested is committed; only the statements after it failed.
            log.warning(
                "a notification could not be sent, waiters find out by polling: %s", error_from_result(failed[0])
            )
        else:
            self._prepared |= self._newly_prepared
        if faults.planted:
            faults.raise_planted(self._connection, self._request.framed_queries, "after")
        frame = self._request.frame if self.needs_frames else None
        return rows_of_each[len(frame.opening) : -1] if frame else rows_of_each


def _encode(query: Query, schema: str) -> tuple[str, list[bytes | None]]:
    text, names = number_parameters(query.statement.text, schema)
    try:
        values = [None if (value := query.params[name]) is None else to_text(value).encode() for name in names]
    except UnicodeEncodeError as error:
        raise psycopg.DataError(f"PostgreSQL cannot store text that is not Unicode: {error}") from error
    for value in values:
        if value is not None and b"\0" in value:  # for libpq a value ends there: the rest would be lost silently
            raise psycopg.DataError("PostgreSQL cannot store text with a NUL (0x00) in it")
    return text, values


@lru_cache(maxsize=1024)
def number_parameters(text: str, schema: str, cast: str = "") -> tuple[str, tuple[str, ...]]:
    """Render a statement with `$1` for `%(name)s`, each followed by the cast; return it with the names in order."""
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        name = match[1]
        return f"${names.setdefault(name, len(names) + 1)}{cast}" if name else "%"

    return render(PLACEHOLDER.sub(number, text), schema), tuple(names)


def copy_field(value: object) -> str:
    """Convert to a field of a COPY line. The driver would adapt every field of every row: half of the time of a bulk send."""
    if value is None:
        return "\\N"
    return to_text(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def copy_chunks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to chunks that are worth a call."""
    left = iter(lines)
    while chunk := "".join(islice(left, COPY_LINES_AT_ONCE)):
        yield chunk
