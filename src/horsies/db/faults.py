"""Faults at named statements, for tests that need a crash or a lost result at one exact moment.

Set `HORSIES_FAULTS="finish_tasks:after:drop"` in the environment of a worker, or call `plant(...)` in this process. Several are
separated by commas; each occurs once. `before` means that the statement has not been sent; `after`, that the server has answered
everything that travelled with it: a connection dropped then is a COMMIT whose result was lost.
"""

import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import psycopg

from horsies.db.statement import Query

When = Literal["before", "after"]
Action = Literal["drop", "kill", "error"]


@dataclass(frozen=True, slots=True)
class Fault:
    statement: str
    when: When
    action: Action


planted: list[Fault] = []
_lock = threading.Lock()


def plant(statement: str, when: When, action: Action) -> None:
    with _lock:
        planted.append(Fault(statement, when, action))


def clear() -> None:
    with _lock:
        planted.clear()


def raise_planted(connection: Any, queries: Iterable[Query], when: When) -> None:
    """Raise the faults planted for these statements. Called around every round trip, if there are any."""
    with _lock:
        found = [
            each for query in queries for each in planted if (each.statement, each.when) == (query.statement.name, when)
        ]
        if not found:
            return
        fault = found[0]
        planted.remove(fault)  # it occurs once
    message = f"planted fault: {fault.action} {fault.when} {fault.statement}"
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "error":
        raise psycopg.errors.InternalError_(message)
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        connection.pgconn.finish()
    else:
        connection.terminate()  # a caller's connection, of asyncpg
    raise psycopg.OperationalError(message)


for _text in filter(None, os.environ.get("HORSIES_FAULTS", "").split(",")):
    _statement, _when, _action = _text.split(":")
    if _when not in get_args(When) or _action not in get_args(Action):
        raise ValueError(f"HORSIES_FAULTS: {_text!r} is not statement:before|after:drop|kill|error")
    plant(_statement, cast("When", _when), cast("Action", _action))
