"""What the tests of workers do again and again."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import Row, column, row

PATIENCE_MS = 20_000


def insert(
    sql: psycopg.Connection, name: str, *, queue_name: str = "default", priority: int = 100, **args: object
) -> str:
    """A row written by hand; its id."""
    (task_id,) = row(
        sql,
        "insert into horsies.tasks (task_name, queue_name, priority, args) values (%s, %s, %s, %s) returning id::text",
        name,
        queue_name,
        priority,
        json.dumps(args),
    )
    return str(task_id)


def insert_lines(sql: psycopg.Connection, log: Path, count: int, *, first: int = 0) -> None:
    """So many `write_line` tasks in one statement; each writes its number to the log."""
    sql.execute(
        "insert into horsies.tasks (task_name, args) "
        "select 'write_line', json_build_object('path', %s::text, 'line', number::text) "
        "from generate_series(%s::integer, %s::integer) as number",
        [str(log), first, first + count - 1],
    )


def numbers(log: Path) -> list[int]:
    """What was written to it, in order."""
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def first_line(path: Path) -> str:
    """The number in it, once its line is complete; else nothing."""
    found = re.match(r"(\d+)\n", path.read_text() if path.exists() else "")
    return found[1] if found else ""


def begun(path: Path) -> int:
    """Wait until a gate has begun; the process it is in."""
    return int(eventually(lambda: first_line(path), what=f"{path.name} has begun"))


def warm_up(basic: Any) -> None:
    """Frames grow by the measured time of the tasks."""
    for handle in [basic.echo.send(number) for number in range(60)]:
        handle.get(PATIENCE_MS)


def statuses(sql: psycopg.Connection) -> Counter[str]:
    """How many tasks there are of each status; fails if one is in both tables or in one of them twice."""
    assert column(sql, "select id from horsies.all_tasks group by id having count(*) > 1") == []
    return Counter(str(status) for status in column(sql, "select status from horsies.all_tasks"))


def wait_until_ended(sql: psycopg.Connection, count: int, timeout_s: float = 30.0) -> Counter[str]:
    """Wait until nothing is live and so many have ended; their statuses."""

    def ended() -> bool:
        return row(sql, "select count(*) from horsies.tasks") == (0,) and finished(sql) == (count,)

    eventually(ended, timeout_s, what=f"{count} tasks have ended", seen=lambda: statuses(sql))
    return statuses(sql)


def finished(sql: psycopg.Connection) -> Row:
    return row(sql, "select count(*) from horsies.finished")
