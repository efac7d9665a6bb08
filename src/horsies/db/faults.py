"""Named faults at the statement funnel, for tests that must see a crash or a lost answer at one exact moment.

`HORSIES_FAULTS="finish_tasks:after:drop"` in the environment of a worker, or `plant(...)` in this process. Several are
separated by commas; each one strikes once. `before` strikes when the statement has not been sent, `after` when the
server has answered everything that travelled with it: a connection dropped then is a COMMIT whose answer was lost.
"""

import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, cast, get_args

import psycopg

When = Literal["before", "after"]
Action = Literal["drop", "kill", "error"]


@dataclass(frozen=True, slots=True)
class Fault:
    statement: str
    when: When
    action: Action


_planted: list[Fault] = []
_lock = threading.Lock()


def plant(statement: str, when: When, action: Action) -> None:
    with _lock:
        _planted.append(Fault(statement, when, action))


def clear() -> None:
    with _lock:
        _planted.clear()


def raise_planted(connection: object, names: Iterable[str], when: When) -> None:
    """Called by the drivers around every round trip; does nothing, cheaply, unless a fault is planted."""
    if _planted:
        for name in names:
            if fault := _take(name, when):
                _act(fault, connection)


def _take(name: str, when: When) -> Fault | None:
    with _lock:
        for fault in _planted:
            if fault.statement == name and fault.when == when:
                _planted.remove(fault)
                return fault
    return None


def _act(fault: Fault, connection: object) -> NoReturn:
    what = f"planted fault: {fault.action} {fault.when} {fault.statement}"
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "drop":
        _drop(connection)
        raise psycopg.OperationalError(what)
    raise psycopg.errors.InternalError_(what)


def _drop(connection: Any) -> None:
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        connection.pgconn.finish()
    else:
        connection.terminate()  # a caller's, of asyncpg


def _plant_from_environment() -> None:
    for text in filter(None, os.environ.get("HORSIES_FAULTS", "").split(",")):
        statement, when, action = text.split(":")
        if when not in get_args(When) or action not in get_args(Action):
            raise ValueError(f"HORSIES_FAULTS: {text!r} is not statement:before|after:drop|kill|error")
        plant(statement, cast("When", when), cast("Action", action))


_plant_from_environment()
