"""What is said over one connection of ours: a batch of statements in one piece, and the answers when all are in.

It goes to libpq directly. The driver's cursors cost more time than the server takes for most of our statements: 0.1 ms a send, 0.2 ms a
turn. Here a statement is its text and its parameters as text, which serves because every parameter is cast in the SQL. The
driver still makes the connections, and turns results and errors into Python's.

Statements are prepared when first used, if the session is ours (see `session`). A name counts as prepared only after a batch that
went well; names are never used twice, so one that was prepared in vain does no harm.

In a session that is not ours every piece begins with the settings that our statements depend on (`session.PINNED`), local to its transaction.

Neither reading nor writing waits here: `Courier` waits on a worker's event loop, `converse` in a blocking caller, `converse_async` in one
on any event loop.
"""

import logging
import re
import select
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import count, islice
from typing import cast
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.waiting import Ready, Wait

from horsies.db.pooler import PINNED, require_utf8, set_locally
from horsies.db.statement import Query, Rows, Statement, render

# --------
# From `%(name)s` to `$1`, and from values to text: for those who number their parameters, libpq itself and asyncpg.
#
# Text serves for everything, because every parameter in our statements is cast.

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


@lru_cache(maxsize=1024)
def numbered(text: str, schema: str, cast: str = "") -> tuple[str, tuple[str, ...]]:
    """The statement with numbers for names, each followed by the cast, and the names in their order."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        return f"${names.setdefault(name, len(names) + 1)}{cast}" if name else "%"

    return render(_PLACEHOLDER.sub(number, text), schema), tuple(names)


def texts(params: Mapping[str, object], names: Sequence[str]) -> list[str | None]:
    """In the order of the names. Most are text already, or nothing."""
    values = [params[name] for name in names]
    return [value if value is None or isinstance(value, str) else text(value) for value in values]


def text(value: object) -> str:
    """Of what is neither text nor nothing."""
    match value:
        case bool():
            return "t" if value else "f"
        case int() | float():
            return str(value)
        case datetime():
            return value.isoformat()
        case _:
            raise TypeError(f"PostgreSQL is never told a {type(value).__name__}")


log = logging.getLogger("horsies.db")
PIN = Statement("pin_settings", set_locally(PINNED))()
_BEGIN = re.compile(r"begin\b")
_END = re.compile(r"(commit|rollback)\b")
_FAILED = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)
_pipelines: "WeakKeyDictionary[psycopg.Connection | psycopg.AsyncConnection, Pipeline]" = WeakKeyDictionary()


class Pipeline:
    """The connection must be in pipeline mode while this speaks."""

    def __init__(self, connection: "psycopg.Connection | psycopg.AsyncConnection") -> None:
        require_utf8(connection)  # what a pool has made was not asked yet
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared: dict[str, bytes] = {}
        self._names = count(1)
        self._new: dict[str, bytes] = {}
        self._pinned_at: int | None = None  # the place of `PIN` among the statements
        self._prepared_first: list[bool] = []  # of each statement under way: its preparation is answered before it
        self._results: list[pq.abc.PGresult] = []
        self._committed = 0  # as many of these as belong to what was asked
        self._unanswered = 0  # pieces, each of which is committed by itself

    def say(self, queries: Sequence[Query], schema: str, after_commit: Sequence[Query] = ()) -> None:
        is_ours = self._connection.prepare_threshold is not None
        pinned_at = None if is_ours else _place_of_pin(queries)
        if pinned_at is not None:
            queries = [*queries[:pinned_at], PIN, *queries[pinned_at:]]
        if after_commit and not is_ours:
            after_commit = [PIN, *after_commit]
        # All of it, before the first is sent: an error between two would leave half a batch to be run with the next one.
        first = [_encoded(query, schema) for query in queries]
        then = [_encoded(query, schema) for query in after_commit]
        self._new, self._results, self._committed, self._pinned_at = {}, [], 0, pinned_at
        self._prepared_first = [self._send(text, values) for text, values in first]
        self._pgconn.pipeline_sync()
        self._unanswered = 1
        if then:
            for text, values in then:
                self._send(text, values)
            self._pgconn.pipeline_sync()
            self._unanswered = 2

    def _send(self, text: str, values: list[bytes | None]) -> bool:
        if self._connection.prepare_threshold is None:
            self._pgconn.send_query_params(text.encode(), values)
            return False
        name = self._prepared.get(text) or self._new.get(text)
        is_new = name is None
        if name is None:
            name = self._new[text] = b"horsies_%d" % next(self._names)
            self._pgconn.send_prepare(name, text.encode())
        self._pgconn.send_query_prepared(name, values)
        return is_new

    def receive_message(self) -> list[Rows] | None:
        """Take in what has arrived, also when nothing was asked: the server may have something to say of its own.

        The rows of each statement, or the error of the first that failed, once all is there.
        """
        return self._understood() if self._is_complete() else None

    def _is_complete(self) -> bool:
        try:
            self._pgconn.consume_input()
            while self._unanswered and not self._pgconn.is_busy():
                result = self._next_result()
                if result is None:
                    continue  # between two statements
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._committed = self._committed or len(self._results)
                    self._unanswered -= 1
                    if not self._unanswered:
                        return True
                else:
                    self._results.append(result)
        except psycopg.OperationalError:
            for result in self._results:
                raise_for_status(result)  # why the server closed the connection tells more than that it did
            raise
        return False

    def _next_result(self) -> pq.abc.PGresult | None:
        result = self._pgconn.get_result()
        if result is None and self._pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError("the connection was lost")
        return result

    def _understood(self) -> list[Rows]:
        results, told = iter(self._results[: self._committed]), self._results[self._committed :]
        self._results = []
        answers: list[Rows] = []
        for prepared_first in self._prepared_first:
            if prepared_first:
                raise_for_status(next(results))
            answers.append(self._rows(raise_for_status(next(results))))
        if self._pinned_at is not None:
            del answers[self._pinned_at]
        for result in results:
            raise_for_status(result)  # of the commit itself
        if failed := [result for result in told if result.status in _FAILED]:
            log_failed_notifications(error_from_result(failed[0]))
        else:
            self._prepared |= self._new
        return answers

    def _rows(self, result: pq.abc.PGresult) -> Rows:
        if not result.nfields:
            return []
        transformer = Transformer(self._connection)
        transformer.set_pgresult(result)
        return cast("Rows", transformer.load_rows(0, result.ntuples, cast("Callable[..., object]", tuple)))


def _encoded(query: Query, schema: str) -> tuple[str, list[bytes | None]]:
    text, names = numbered(query.statement.text, schema)
    try:
        values = [None if value is None else value.encode() for value in texts(query.params, names)]
    except UnicodeEncodeError as error:
        raise psycopg.DataError(f"PostgreSQL cannot store text that is not Unicode: {error}") from error
    for value in values:
        if value is not None and b"\0" in value:  # for libpq a value ends there: the rest would be lost without a word
            raise psycopg.DataError("PostgreSQL cannot store text with a NUL (0x00) in it")
    return text, values


def _place_of_pin(queries: Sequence[Query]) -> int | None:
    """After a BEGIN, whose isolation level must be set before any query. Nothing depends on it in what only ends a transaction, which may have failed."""
    first = queries[0].statement.text if queries else ""
    if _END.match(first):
        return None
    return 1 if _BEGIN.match(first) else 0


def log_failed_notifications(error: psycopg.Error) -> None:
    """What was asked is done; only what should have been said of it afterwards failed."""
    log.warning("a notification could not be sent; whoever waits for it looks again by itself: %s", error)


def raise_for_status(result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status in _FAILED:
        raise error_from_result(result)
    return result


def execute(
    connection: psycopg.Connection, queries: Sequence[Query], schema: str, after_commit: Sequence[Query] = ()
) -> list[Rows]:
    """One round trip, blocking. A connection that is left in the middle of it, by Ctrl-C for one, is closed."""
    pipeline, pgconn = _pipeline_on(connection), connection.pgconn
    pgconn.enter_pipeline_mode()
    try:
        pipeline.say(queries, schema, after_commit)
        _write(pgconn)
        return _read(pgconn, pipeline)
    finally:
        if _is_over(pgconn):
            pgconn.exit_pipeline_mode()
        else:
            connection.close()


async def execute_async(
    connection: psycopg.AsyncConnection, queries: Sequence[Query], schema: str, after_commit: Sequence[Query] = ()
) -> list[Rows]:
    """The same, awaiting. The driver's own pipeline would wait for the commit before it sends what is said afterwards."""
    pipeline, pgconn = _pipeline_on(connection), connection.pgconn
    pgconn.enter_pipeline_mode()
    try:
        pipeline.say(queries, schema, after_commit)
        return await connection.wait(_exchange(pgconn, pipeline))
    finally:
        if _is_over(pgconn):
            pgconn.exit_pipeline_mode()
        else:
            await connection.close()


def _pipeline_on(connection: psycopg.Connection | psycopg.AsyncConnection) -> Pipeline:
    pipeline = _pipelines.get(connection)
    if pipeline is None:
        pipeline = _pipelines[connection] = Pipeline(connection)
    return pipeline


def _is_over(pgconn: pq.abc.PGconn) -> bool:
    return pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status != pq.TransactionStatus.ACTIVE


def _exchange(pgconn: pq.abc.PGconn, pipeline: Pipeline) -> Generator[Wait, Ready | int, list[Rows]]:
    """Says what it waits for, to be called when that is so, or perhaps is."""
    while pgconn.flush():
        yield Wait.RW
        pgconn.consume_input()  # as in `_write`
    while (answer := pipeline.receive_message()) is None:
        yield Wait.R
    return answer


def _write(pgconn: pq.abc.PGconn) -> None:
    """While the server's answers fill its side of the line they must be taken in, or both would wait for ever."""
    while pgconn.flush():
        either = select.poll()
        either.register(pgconn.socket, select.POLLIN | select.POLLOUT)
        either.poll()
        pgconn.consume_input()


def _read(pgconn: pq.abc.PGconn, pipeline: Pipeline) -> list[Rows]:
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    while True:
        readable.poll()
        if (answer := pipeline.receive_message()) is not None:
            return answer


# --------
# Rows as COPY reads them: a line each, with a tab between the fields.
#
# The driver's own way adapts every field of every row, though all but two are the same in a whole batch: half of the time of a bulk send.

COPY_LINES_AT_ONCE = 1_000


def copy_field(value: object) -> str:
    if value is None:
        return "\\N"
    written = value if isinstance(value, str) else text(value)
    return written.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def copy_chunks(lines: Iterable[str]) -> Iterator[str]:
    """So many together that writing them is worth a call."""
    left = iter(lines)
    while piece := "".join(islice(left, COPY_LINES_AT_ONCE)):
        yield piece
