"""Statements on one of our connections: a batch is sent in one piece, and its results are returned when all are there.

This calls libpq directly. The driver's cursors take more time than the server does for most of our statements: 0.1 ms per send, 0.2 ms
per batch. Here a statement is its text and its parameters as text, which is enough because every parameter is cast in the SQL.
The driver still opens the connections and converts results and errors.

A session that is ours (see `pooler.py`) has `prepare_threshold` set. In it statements are prepared at first use. A name counts as
prepared only after a batch without errors. Names are never reused, so a statement that was prepared in a failed batch does no harm.

In a session that is not ours every transaction begins with the settings that our statements depend on (`pooler.PINNED`), local to it.

Nothing here waits: `LoopConnection` waits on a worker's event loop, `execute` in a blocking caller, `execute_async` on any event loop.
"""

import logging
import re
import select
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, islice
from typing import TypeAlias, cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.waiting import Ready, Wait

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
        self._main_count = 0  # how many of the results belong to the statements before the commit
        self._pending_syncs = 0  # each part that is committed by itself ends with a sync

    def send(self, request: Request, schema: str) -> None:
        if faults.planted:
            faults.raise_planted(self._connection, request.framed_queries, "before")
        queries, after_commit = request.framed_queries if self.needs_frames else request.queries, request.after_commit
        if self._connection.prepare_threshold is None:  # the session is not ours
            queries = _pin(queries)
            after_commit = [PIN, *after_commit] if after_commit else ()
        # Encode everything before sending anything: an error in between would leave half a batch to run with the next one.
        parts = [[(query, *_encode(query, schema)) for query in part] for part in (queries, after_commit)]
        self._request, self._newly_prepared, self._results, self._main_count = request, {}, [], 0
        self._sent = self._send_part(parts[0])
        self._pending_syncs = 1
        if after_commit:
            self._send_part(parts[1])
            self._pending_syncs = 2

    def _send_part(self, part: list[tuple[Query, str, list[bytes | None]]]) -> list[tuple[Query, bool]]:
        """Send what is committed together. Return for each statement whether it is prepared now."""
        sent: list[tuple[Query, bool]] = []
        for query, text, values in part:
            name = self._prepared.get(text) or self._newly_prepared.get(text)
            is_new = False
            if self._connection.prepare_threshold is None:
                self._pgconn.send_query_params(text.encode(), values)
            else:
                is_new = name is None
                if name is None:
                    name = self._newly_prepared[text] = b"horsies_%d" % next(self._name_numbers)
                    self._pgconn.send_prepare(name, text.encode())
                self._pgconn.send_query_prepared(name, values)
            sent.append((query, is_new))
        self._pgconn.pipeline_sync()
        return sent

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
            _raise_first_error(self._results)
            raise
        return None

    def _to_rows_of_each(self) -> list[Rows]:
        results, after_commit = self._results[: self._main_count], self._results[self._main_count :]
        self._results = []
        _raise_first_error(results)  # that of the commit is the last
        rows_of_each: list[Rows] = []
        transformer = Transformer(self._connection)
        in_order = iter(results)
        for query, has_prepare in self._sent:
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


def _raise_first_error(results: list[pq.abc.PGresult]) -> None:
    for result in results:
        if result.status in _FAILED:
            raise error_from_result(result)


def _pin(queries: Sequence[Query]) -> Sequence[Query]:
    """Pin after a BEGIN, whose isolation level must be set before any query; not before an END, whose transaction may have failed."""
    first = queries[0].statement.text if queries else ""
    at = 1 if _BEGIN.match(first) else 0
    return queries if _END.match(first) else [*queries[:at], PIN, *queries[at:]]


def _encode(query: Query, schema: str) -> tuple[str, list[bytes | None]]:
    text, names = number_parameters(query.statement.text, schema)
    try:
        values = [None if value is None else value.encode() for value in to_texts(query.params, names)]
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


def to_texts(params: Mapping[str, object], names: Sequence[str]) -> list[str | None]:
    """Convert the parameters to text, in the order of the names. Most are text or None already."""
    values = [params[name] for name in names]
    return [value if value is None or isinstance(value, str) else to_text(value) for value in values]


def copy_field(value: object) -> str:
    """Convert to a field of a COPY line. The driver would adapt every field of every row: half of the time of a bulk send."""
    if value is None:
        return "\\N"
    written = value if isinstance(value, str) else to_text(value)
    return written.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def copy_chunks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to chunks that are worth a call."""
    left = iter(lines)
    while chunk := "".join(islice(left, COPY_LINES_AT_ONCE)):
        yield chunk


_pipelines: "WeakKeyDictionary[AnyConnection, Pipeline]" = WeakKeyDictionary()


def execute(connection: psycopg.Connection, request: Request, schema: str) -> list[Rows]:
    """Make one round trip, blocking. A connection that is abandoned in the middle of it, as by Ctrl-C, is closed."""
    pgconn, results = connection.pgconn, None
    pipeline = _enter_pipeline_mode(connection)
    try:
        pipeline.send(request, schema)
        poll = select.poll()
        while results is None and pgconn.flush():
            poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
            poll.poll()
            results = pipeline.receive()  # reading also flushes, so all results may be there now
        poll.register(pgconn.socket, select.POLLIN)
        while results is None:
            poll.poll()
            results = pipeline.receive()
        return results
    finally:
        if not _exit_pipeline_mode(pgconn):
            connection.close()


async def execute_async(connection: psycopg.AsyncConnection, request: Request, schema: str) -> list[Rows]:
    """The same, awaiting. The driver's own pipeline would wait for the commit before it sends what comes after it."""
    pipeline = _enter_pipeline_mode(connection)
    try:
        pipeline.send(request, schema)
        return await connection.wait(_exchange(connection.pgconn, pipeline))
    finally:
        if not _exit_pipeline_mode(connection.pgconn):
            await connection.close()


def _enter_pipeline_mode(connection: AnyConnection) -> Pipeline:
    pipeline = _pipelines.get(connection)
    if pipeline is None:
        pipeline = _pipelines[connection] = Pipeline(connection)
    connection.pgconn.enter_pipeline_mode()
    return pipeline


def _exit_pipeline_mode(pgconn: pq.abc.PGconn) -> bool:
    """Return whether the connection is usable."""
    is_idle = pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status != pq.TransactionStatus.ACTIVE
    if is_idle:
        pgconn.exit_pipeline_mode()
    return is_idle


def _exchange(pgconn: pq.abc.PGconn, pipeline: Pipeline) -> Generator[Wait, Ready | int, list[Rows]]:
    """Yield what the socket must be ready for, until all results are there."""
    while pgconn.flush():
        yield Wait.RW
        pgconn.consume_input()  # if the server's results filled its side of the connection, both sides would wait
    # Read before waiting: the results may be there already, taken in above or sent while this process was not running.
    while (results := pipeline.receive()) is None:
        yield Wait.R
    return results
