"""Sends of unknown outcome: the connection is lost before or just after the commit."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from horsies import TaskHandle
from horsies.db.faults import When
from horsies.db.statement import Op
from horsies.model.send_options import Key
from horsies.model.task import TaskOptions
from horsies.tasks.enqueue import SLICE_ROWS, Tasks, enqueue, enqueue_again, enqueue_within, new_tasks
from horsies.tasks.finish import finish_tasks
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import ME, claim, column, completed, do, row
from tests.fixtures.shops import Shop

Handles = Sequence[TaskHandle[int]]


@dataclass(frozen=True, slots=True)
class Verb:
    """A way to send, the statement that commits it, and the number of tasks it sends."""

    send: Callable[[Shop], Handles]
    commits: str
    count: int = 1


VERBS = {
    "send": Verb(lambda shop: [shop.pack.send(1)], "enqueue_tasks"),
    "schedule": Verb(lambda shop: [shop.pack.schedule(60, 1)], "enqueue_tasks"),
    "a few": Verb(lambda shop: shop.pack.send_many([shop.pack.call(1)] * 3), "enqueue_tasks", 3),
    "very many": Verb(lambda shop: shop.pack.send_many([shop.pack.call(1)] * (SLICE_ROWS + 1)), "commit_send", SLICE_ROWS + 1),
    "a key": Verb(lambda shop: [shop.pack.with_options(key="k").send(1)], "commit_send"),
    "a key that raises": Verb(lambda shop: [shop.pack.with_options(key="k", on_conflict="raise").send(1)], "commit_send"),
    "a key that replaces": Verb(lambda shop: [shop.pack.with_options(key="k", on_conflict="replace").send(1)], "commit_send"),
}  # fmt: skip


def ids(handles: Handles) -> list[object]:
    return [handle.task_id for handle in handles]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_lost_answer_enqueues_each_task_once(
    shop: Shop, faults: Plant, sql: psycopg.Connection, verb: Verb, when: When
) -> None:
    faults(verb.commits, when, "drop")
    handles = verb.send(shop)
    assert column(sql, "select id::text from horsies.tasks order by id") == ids(handles)
    assert len(handles) == verb.count


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_two_lost_answers_enqueue_each_task_once(
    shop: Shop, faults: Plant, sql: psycopg.Connection, verb: Verb
) -> None:
    faults(verb.commits, "after", "drop")
    faults("delete_probe", "after", "drop")
    faults("commit_send", "after", "drop")
    assert column(sql, "select id::text from horsies.tasks") == []
    handles = verb.send(shop)
    assert column(sql, "select id::text from horsies.tasks order by id") == ids(handles)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_lost_during_copy_enqueues_each_task_once(
    shop: Shop, faults: Plant, sql: psycopg.Connection, when: When
) -> None:
    faults("copy_tasks", when, "drop")
    handles = VERBS["very many"].send(shop)
    assert column(sql, "select id::text from horsies.tasks order by id") == ids(handles)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["very many", "a key"])
async def test_a_lost_answer_of_an_async_send_enqueues_each_task_once(
    shop: Shop, faults: Plant, sql: psycopg.Connection, name: str, when: When
) -> None:
    faults("commit_send", when, "drop")
    if name == "a key":
        handles = [await shop.pack.with_options(key="k").send_async(1)]
    else:
        handles = await shop.pack.send_many_async([shop.pack.call(1)] * (SLICE_ROWS + 1))
    assert column(sql, "select id::text from horsies.tasks order by id") == ids(handles)
    await shop.app.close_async()


# -- changes between a lost send and its repetition


def send_with_lost_answer(
    shop: Shop, faults: Plant, tasks: Tasks, key: Key | None = None, *, before_again: Callable[[], object]
) -> Sequence[str]:
    """Send as a `Sender` does. The first answer is lost, and `before_again` runs before the repetition."""

    def again() -> Op[Sequence[str]]:
        before_again()
        return enqueue_again(tasks, key)

    faults("enqueue_tasks" if key is None and len(tasks) <= SLICE_ROWS else "commit_send", "after", "drop")
    return [*shop.app.broker.run(partial(enqueue, tasks, key), again=again)]


def parcels(count: int = 1, number: int = 1) -> Tasks:
    return new_tasks([f'{{"number":{number}}}'] * count, TaskOptions("pack", "parcels"))


def run_all(shop: Shop) -> None:
    held = claim(shop.app.broker, 2 * SLICE_ROWS, queues=["parcels"])
    do(shop.app.broker, finish_tasks(ME, [completed(one) for one in held]))


KEYS = [Key("k", on_conflict, timedelta(0)) for on_conflict in ("return", "raise", "replace")]


@pytest.mark.parametrize(
    ("count", "key"), [(1, None), (SLICE_ROWS, None), (SLICE_ROWS + 1, None), *((1, key) for key in KEYS)]
)
def test_a_repeated_send_does_not_run_an_ended_task_again(
    shop: Shop, faults: Plant, sql: psycopg.Connection, count: int, key: Key | None
) -> None:
    sent = send_with_lost_answer(shop, faults, parcels(count), key, before_again=lambda: run_all(shop))
    assert column(sql, "select id::text from horsies.finished order by id") == sent
    assert row(sql, "select count(*) from horsies.tasks") == (0,)


@pytest.mark.parametrize("key", KEYS)
def test_a_repeated_send_does_not_run_an_ended_task_again_after_its_key_was_taken(
    shop: Shop, faults: Plant, sql: psycopg.Connection, key: Key
) -> None:
    others: list[object] = []

    def run_it_and_send_another() -> None:
        run_all(shop)
        others.append(shop.pack.with_options(key="k").send(2).task_id)

    sent = send_with_lost_answer(shop, faults, parcels(), key, before_again=run_it_and_send_another)
    assert column(sql, "select id::text from horsies.finished") == sent
    assert column(sql, "select id::text from horsies.tasks") == others


def test_a_repeated_replacement_does_not_run_an_ended_task_again(
    shop: Shop, faults: Plant, sql: psycopg.Connection
) -> None:
    first = shop.pack.with_options(key="k").send(1)
    replacement = Key("k", "replace", timedelta(0))
    sent = send_with_lost_answer(shop, faults, parcels(number=2), replacement, before_again=lambda: run_all(shop))
    assert sent == [first.task_id]
    assert row(sql, "select id::text, args::text from horsies.finished") == (first.task_id, '{"number":2}')
    assert row(sql, "select count(*) from horsies.tasks") == (0,)


def test_a_repeated_send_waits_for_the_first_one_to_commit(shop: Shop, database: str, sql: psycopg.Connection) -> None:
    """The client has lost the connection, but the server still executes what it received."""
    tasks = parcels(2)
    with psycopg.connect(database) as slow, ThreadPoolExecutor(1) as thread:
        shop.app.broker.run_on(slow, partial(enqueue_within, tasks))
        again = thread.submit(shop.app.broker.run, partial(enqueue_again, tasks))
        wait_until_blocked(sql, on=slow)
        slow.commit()
        again.result()
    assert column(sql, "select id::text from horsies.tasks order by id") == [task.id for task in tasks]


def test_a_send_on_the_callers_connection_is_not_repeated(
    shop: Shop, faults: Plant, database: str, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database) as caller:
        faults("enqueue_tasks", "after", "drop")
        with pytest.raises(psycopg.OperationalError, match="planted fault"):
            shop.pack.with_options(connection=caller, key="k").send(1)
    assert row(sql, "select count(*) from horsies.tasks") == (0,)
    assert row(sql, "select count(*) from horsies.keys") == (0,)
