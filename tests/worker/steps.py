"""Steps that several tests of workers share."""

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
    """Insert a row with SQL. Returns its id."""
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
    """Insert `count` `write_line` tasks in one statement; each writes its number to the log."""
    sql.execute(
        "insert into horsies.tasks (task_name, args) "
        "select 'write_line', json_build_object('path', %s::text, 'line', number::text) "
        "from generate_series(%s::integer, %s::integer) as number",
        [str(log), first, first + count - 1],
    )


def numbers(log: Path) -> list[int]:
    """Return the numbers in the log, in order."""
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def first_line(path: Path) -> str:
    """Return the number in the file, once its line is complete; before that, an empty string."""
    line = re.match(r"(\d+)\n", path.read_text() if path.exists() else "")
    return line[1] if line else ""


def begun(path: Path) -> int:
    """Wait until a gate has begun. Returns the pid of its child."""
    return int(eventually(lambda: first_line(path), what=f"{path.name} has begun"))


def warm_up(basic: Any) -> None:
    """Run short tasks: the prefetch limit grows with the measured durations."""
    for handle in [basic.echo.send(number) for number in range(60)]:
        handle.get(PATIENCE_MS)


def statuses(sql: psycopg.Connection) -> Counter[str]:
    """Count the tasks by status; fail if one is in both tables or in one of them twice."""
    assert column(sql, "select id from horsies.all_tasks group by id having count(*) > 1") == []
    return Counter(str(status) for status in column(sql, "select status from horsies.all_tasks"))


def wait_until_ended(sql: psycopg.Connection, count: int, timeout_s: float = 30.0) -> Counter[str]:
    """Wait until no task is live and `count` have ended. Returns their statuses."""

    def ended() -> bool:
        return row(sql, "select count(*) from horsies.tasks") == (0,) and finished(sql) == (count,)

    eventually(ended, timeout_s, what=f"{count} tasks have ended", seen=lambda: statuses(sql))
    return statuses(sql)


def finished(sql: psycopg.Connection) -> Row:
    return row(sql, "select count(*) from horsies.finished")
