"""Forged notifications: any role that may connect to the database can send them, on every channel."""

import random
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from horsies.db.channels import Channel
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.roles import PlainUser
from tests.fixtures.workers import Program, StartWorker
from tests.worker.steps import PATIENCE_MS, begun

APP = "tests.apps.tuned:app"
BESIEGED = "tests.apps.besieged:app"
LONGEST = 7_999  # bytes of a payload

Forge = Callable[[Channel, str], None]


@pytest.fixture
def forge(plain_user: PlainUser, database: str) -> Generator[Forge]:
    """Notify as a role without any privilege in the schema."""
    with psycopg.connect(plain_user.url(database), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select from horsies.tasks")

        def notify(channel: Channel, payload: str) -> None:
            connection.execute("select pg_notify(%s, %s)", [channel.name_in("horsies"), payload])

        yield notify


def assert_unharmed(*programs: Program) -> None:
    """Check that they still run, exit cleanly, and have logged no error."""
    for program in programs:
        assert program.process.poll() is None
        assert program.terminate() == 0  # and the log is complete
        assert not [line for line in program.logs if "Traceback" in line or "database unavailable" in line]


@pytest.mark.promise("D6")
@pytest.mark.parametrize(
    "payload",
    [
        "99999999999 1 default",
        f"1 {'9' * 18} default",
        "1 -99999999999999999 default",
        "later x",
        "later 1e5",
        "later nan",
        "later -1",
        f"later {'9' * 400}",
        "later 9223372036854775807",
        "\u0663 \u0663 default",
        "x" * LONGEST,
    ],
    ids=lambda payload: payload[:24],
)
def test_no_payload_loses_a_result(basic: Any, worker: StartWorker, forge: Forge, payload: str) -> None:
    running = worker(APP)
    for number in range(10):  # each time: it may not listen yet when it logs that it is ready
        forge(Channel.NEW, payload)
        result = basic.add.send(1, number).get(PATIENCE_MS)
        assert result.is_ok(), result
    assert_unharmed(running)


@pytest.mark.promise("D6")
def test_a_task_is_cancelled_by_its_row_and_not_by_a_notification(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, forge: Forge, tmp_path: Path
) -> None:
    running = worker(
        APP, processes=2, env={"HORSIES_TEST_HEARTBEAT_MS": "60000", "HORSIES_TEST_DEAD_AFTER_MS": "180000"}
    )
    innocent = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    (me,) = row(sql, "select claimed_by::text from horsies.tasks")
    beats = "select heartbeat_at from horsies.workers"
    before = row(sql, beats)
    forge(Channel.CONTROL, f"{me} cancel {innocent.task_id}")
    eventually(lambda: row(sql, beats) != before, what="it has sent a heartbeat")
    # That heartbeat is over when a later one has been acted on: a real cancellation.
    other = basic.gate.send(str(tmp_path / "other begun"), str(tmp_path / "never"))
    begun(tmp_path / "other begun")
    other.cancel()
    assert other.get(PATIENCE_MS).err_value.error_code == "TASK_CANCELLED", "at once: the next heartbeat is far away"
    assert innocent.status() == "RUNNING"
    (tmp_path / "open").touch()
    assert innocent.get(PATIENCE_MS).is_ok()
    assert_unharmed(running)


@pytest.mark.promise("D6")
def test_a_flood_of_notifications_causes_few_heartbeats(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, forge: Forge
) -> None:
    """Counted by the transactions that change the worker's row, however long the flood takes."""
    running = worker(APP, env={"HORSIES_TEST_HEARTBEAT_MS": "60000", "HORSIES_TEST_DEAD_AFTER_MS": "180000"})
    (me,) = row(sql, "select id::text from horsies.workers")
    sql.execute("create table beats (at timestamptz)")
    sql.execute(
        "create function count_beat() returns trigger language plpgsql as "
        "$$ begin insert into public.beats values (clock_timestamp()); return null; end $$"
    )
    sql.execute("create trigger count_beats after update on horsies.workers for each row execute function count_beat()")
    began = time.monotonic()
    for _ in range(500):
        forge(Channel.CONTROL, f"{me} ping")
        forge(Channel.CONTROL, f"{me} cancel {uuid4()}")
    most = (time.monotonic() - began) / 0.05 + 2
    eventually(lambda: row(sql, "select max(at) < clock_timestamp() - interval '500 ms' from beats") == (True,))
    assert 1 <= int(str(row(sql, "select count(*) from beats")[0])) <= most
    assert basic.add.send(1, 2).get(PATIENCE_MS).ok_value == 3
    assert_unharmed(running)


NUMBERS = [
    "0",
    "1",
    "-1",
    "100",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9" * 18,
    "9" * 19,
    "9" * 400,
    "1e5",
    "nan",
    "inf",
    "+1",
    "1_0",
    "\u0663",
    "",
    "x",
]


def hostile(count: int, workers: list[str], tasks: list[str]) -> Iterator[tuple[Channel, str]]:
    """Yield notifications for all channels and verbs, with invalid values of many kinds and with valid ids."""
    random_ = random.Random(15)  # noqa: S311 - the same every time
    now_us = int(time.time() * 1_000_000)

    def number() -> str:
        near = [str(now_us), str(now_us + 3_600_000_000), str(random_.randrange(32_768))]
        return random_.choice([*NUMBERS, *near])

    def some_id() -> str:
        return random_.choice([*tasks, *workers, str(uuid4()), "x"])

    def junk() -> str:
        letters = "".join(
            chr(random_.choice([random_.randrange(1, 128), random_.randrange(0x100, 0x3000)])) for _ in range(30)
        )
        return letters * random_.choice([1, 80])

    kinds: list[Callable[[], tuple[Channel, str]]] = [
        lambda: (Channel.NEW, f"{number()} {number()} default"),
        lambda: (Channel.NEW, f"{random_.randrange(32_768)} {now_us} default"),
        lambda: (Channel.NEW, f"later {number()}"),
        lambda: (
            Channel.NEW,
            random_.choice(["*", "freed", "", " ", "later", "later  1", "freed freed", "0" * LONGEST]),
        ),
        lambda: (
            Channel.CONTROL,
            f"{random_.choice(workers)} {random_.choice(['cancel', 'ping', 'leave', '*'])} {some_id()}",
        ),
        lambda: (Channel.CONTROL, random_.choice(["*", f"{some_id()} ping", f"{some_id()} cancel"])),
        lambda: (Channel.DONE, random_.choice(["*", some_id(), " ".join(tasks[:100]), " " * LONGEST])),
        lambda: (Channel.SCHEDULES, random_.choice(["", "*", "x"])),
        lambda: (Channel.TEST, some_id()),
        lambda: (random_.choice([*Channel]), junk()),
    ]
    for _ in range(count):
        channel, payload = random_.choice(kinds)()
        yield channel, payload.encode()[:LONGEST].decode(errors="ignore")


@pytest.mark.promise("D6")
@pytest.mark.parametrize("prefetch", ["0", "auto"])
def test_two_hundred_forged_notifications_change_no_task(
    basic: Any,
    worker: StartWorker,
    sql: psycopg.Connection,
    forge: Forge,
    tmp_path: Path,
    prefetch: str,
) -> None:
    """While two workers run tasks, one of them with a schedule, and producers wait for results. Each is sent ten times."""
    env = {"HORSIES_TEST_PREFETCH": prefetch}
    programs = [worker(BESIEGED, processes=2, env=env), worker(BESIEGED, options=("--scheduler",), env=env)]
    registered = "select id::text from horsies.workers order by id"
    workers = [str(worker_id) for worker_id in column(sql, registered)]
    innocent = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")

    def add_one(number: int) -> int:
        return int(basic.add.send(1, number).get(PATIENCE_MS).ok_value)

    with ThreadPoolExecutor(5) as pool:
        results = [pool.submit(add_one, n) for n in range(300)]
        live = [str(task_id) for task_id in column(sql, "select id::text from horsies.tasks")]
        for channel, payload in hostile(200, workers, [innocent.task_id, *live]):
            for _ in range(10):
                forge(channel, payload)
        assert [future.result() for future in results] == [n + 1 for n in range(300)]
    assert innocent.status() == "RUNNING"
    (tmp_path / "open").touch()
    assert innocent.get(PATIENCE_MS).is_ok()
    ticks = "select count(*) from horsies.schedule_runs where outcome = 'ENQUEUED'"
    before = row(sql, ticks)
    eventually(lambda: row(sql, ticks) != before, what="the schedule continues")
    assert column(sql, registered) == workers
    assert_unharmed(*programs)
    assert column(sql, "select id from horsies.finished where status <> 'COMPLETED'") == []
