"""A verb on the caller's own connection: what it sends is part of their transaction, and appears or vanishes with it.

Nothing is tried again. After an error their transaction is broken, and only they know what else was in it; so the error that
their library raised comes out as it is, and what they do about the errors of their own statements works for it too. A
connection that is lost at their COMMIT leaves them what it always leaves: not knowing, about the task as about the rest.

On a connection that commits each statement by itself there is no transaction to be part of: the verb gets one of its own.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from horsies.db import faults
from horsies.db.drive import drive, drive_async
from horsies.db.load import load
from horsies.db.loans import Loan, borrow, borrow_async
from horsies.db.op import Ask, Op, Query, Request, Rows, rows
from horsies.model.errors import SchemaError

SQL = load(__file__)
T = TypeVar("T")

_NO_SUCH_TABLE = ("42P01", "3F000")
_ALREADY_BROKEN = "25P02"


def run_on(connection: object, verb: Callable[[], Op[T]], schema: str) -> T:
    loan = borrow(connection)
    with _explained(schema):
        return drive(_whole(verb, loan), partial(_answer, loan, schema))


async def run_on_async(connection: object, verb: Callable[[], Op[T]], schema: str) -> T:
    loan = await borrow_async(connection)
    with _explained(schema):
        return await drive_async(_whole(verb, loan), partial(_answer_async, loan, schema))


def _whole(verb: Callable[[], Op[T]], loan: Loan[Rows] | Loan[Awaitable[Rows]]) -> Op[T]:
    return _in_transaction(verb()) if loan.is_alone else verb()


def _in_transaction(op: Op[T]) -> Op[T]:
    yield from rows(SQL["begin_transaction"]())
    try:
        result = yield from op
    except BaseException:
        with suppress(Exception):  # the first error tells more; a lost connection rolls back by itself
            yield from rows(SQL["roll_back_transaction"]())
        raise
    yield from rows(SQL["commit_transaction"]())
    return result


def _answer(loan: Loan[Rows], schema: str, request: Request) -> list[Rows]:
    queries = _queries(request)
    names = [query.statement.name for query in queries]
    faults.strike(loan.driver, names, "before")
    answer = [loan.execute(query, schema) for query in queries]
    faults.strike(loan.driver, names, "after")
    return answer


async def _answer_async(loan: Loan[Awaitable[Rows]], schema: str, request: Request) -> list[Rows]:
    queries = _queries(request)
    names = [query.statement.name for query in queries]
    faults.strike(loan.driver, names, "before")
    answer = [await loan.execute(query, schema) for query in queries]
    faults.strike(loan.driver, names, "after")
    return answer


def _queries(request: Request) -> Sequence[Query]:
    if isinstance(request, Ask):
        return request.queries
    raise TypeError(f"{request.statement.name!r} is no query, and has no place in a caller's transaction")


@contextmanager
def _explained(schema: str) -> Generator[None]:
    """Say more where the server's words do not tell a sender what to change."""
    try:
        yield
    except Exception as error:
        if (code := _sqlstate(error)) in _NO_SUCH_TABLE:
            raise SchemaError(
                f"the database of this connection has no tables of horsies in its schema {schema!r}; a transactional "
                "send needs the app's own database: if it is that one, run `horsies migrate`"
            ) from error
        if code == _ALREADY_BROKEN:
            error.add_note("An earlier statement of this transaction failed: roll it back, and send in a new one.")
        raise


def _sqlstate(error: BaseException | None) -> str | None:
    """SQLAlchemy and Django raise their own errors from the driver's."""
    while error is not None:
        if code := getattr(error, "sqlstate", None):
            return str(code)
        error = error.__cause__
    return None
