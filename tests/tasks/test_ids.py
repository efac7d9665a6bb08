import multiprocessing
import threading
import time
from uuid import UUID

import psycopg
import pytest

from horsies.tasks import ids
from horsies.tasks.ids import new_task_id
from tests.fixtures.journey import column


def test_ids_are_version_7_and_carry_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = UUID(new_task_id())
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert before - 50 <= made.int >> 80 <= after + 50  # many ids in one millisecond may be ahead of the clock


def test_ids_increase_strictly() -> None:
    made = [new_task_id() for _ in range(20_000)]
    assert sorted(made) == made
    assert len(set(made)) == len(made)


def test_threads_never_get_the_same_id() -> None:
    def make(own: list[str]) -> None:
        own.extend(new_task_id() for _ in range(2_000))

    made: list[list[str]] = [[] for _ in range(8)]
    threads = [threading.Thread(target=make, args=[own]) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(sorted(own) == own for own in made)
    assert len({task_id for own in made for task_id in own}) == 16_000


def test_a_child_forked_while_another_thread_makes_ids_can_make_ids() -> None:
    """`send_many` in a thread of a forking server: the child inherits the lock, but not the thread that would release it."""
    child = multiprocessing.get_context("fork").Process(target=new_task_id)
    with vars(ids)["_lock"]:  # as the other thread does for a moment
        child.start()
    child.join(5)
    is_stuck = child.is_alive()
    child.kill()
    child.join()
    assert not is_stuck


@pytest.mark.promise("A7")
def test_rows_inserted_with_sql_get_a_version_7_id_too(sql: psycopg.Connection) -> None:
    sql.execute("insert into horsies.tasks (task_name) select 'add' from generate_series(1, 100)")
    now_ms = time.time_ns() // 1_000_000
    for text in column(sql, "select id::text from horsies.tasks"):
        made = UUID(str(text))
        assert (made.version, made.variant) == (7, "specified in RFC 4122")
        assert abs((made.int >> 80) - now_ms) < 60_000
