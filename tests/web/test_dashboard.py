"""The dashboard over HTTP, on a real server."""

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import psycopg
from hypothesis import given
from hypothesis import strategies as st

from horsies import Horsies
from horsies.web.tags import Tags


async def test_an_action_changes_something_says_so_and_is_recorded(app: Horsies, visit: Any) -> None:
    app.ops.pause_queue("mail")
    visitor = await visit()
    done = await visitor.post("/actions/resume-queue", name="mail", back="/?x=1")
    assert (done.status_code, done.headers["location"]) == (303, "/?x=1")
    assert "Queue mail is resumed" in (await visitor.get("/")).text
    assert "Queue mail is resumed" not in (await visitor.get("/")).text, "a message is shown once"
    newest = app.ops.list_audit(limit=1)[0]
    assert (newest.actor, newest.action, newest.target, newest.count) == ("local", "resume queue", "mail", 1)


async def test_thousands_of_queues_and_workers_are_shown_in_pages(
    app: Horsies, visit: Any, sql: psycopg.Connection
) -> None:
    sql.execute(
        "insert into horsies.queues (name, paused_at) select 'queue-' || n, now() from generate_series(100, 220) n"
    )
    sql.execute(
        "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
        "select gen_random_uuid(), 'host-' || n, n, 1, 1, '{}', '1' from generate_series(100, 220) n"
    )
    visitor = await visit()
    for path, name in (("/queues", "queue-"), ("/workers", "host-")):
        first, second = (await visitor.get(path)).text, (await visitor.get(f"{path}?page=1")).text
        shown = [[number for number in range(100, 221) if f">{name}{number}" in page] for page in (first, second)]
        assert [len(numbers) for numbers in shown] == [100, 21]
        assert sorted(shown[0] + shown[1]) == [*range(100, 221)]
        assert (f"{path}?page=1" in first, "121 " in first, f"{path}?page=2" in second) == (True, True, False)
        assert (await visitor.get(f"{path}?page=no-number")).status_code == 200


async def test_a_queue_with_nothing_but_later_tasks_is_listed(
    app: Horsies, visit: Any, sql: psycopg.Connection
) -> None:
    sql.execute(
        "insert into horsies.tasks (id, task_name, queue_name, args, ready, enqueued_at) "
        "values (gen_random_uuid(), 'report', 'nightly', '{}', false, now() + interval '1 h')"
    )
    assert ">nightly<" in (await (await visit()).get("/queues")).text


@given(st.text().map(lambda text: f"<b>\"'&{text}"))
def test_no_text_breaks_out_of_the_parts_of_a_page(text: str) -> None:
    tags, now = Tags("/a&b"), datetime(2026, 1, 1, tzinfo=UTC)
    for part in (
        tags.status(text), tags.status("ok", text), tags.empty(text, text), tags.copy(text, text), tags.time(None, now, text),
        tags.task_link(text), tags.workflow_link(text, text), tags.worker_link(text, text), tags.queue_link(text), tags.schedule_link(text),
        tags.task_name_link(text), tags.live_act(text, text, text, text, confirm=text), tags.run_sign(text, text, now), tags.run_sign(None, text, now),
    ):  # fmt: skip
        assert "<b>" not in part
        assert "\"'" not in part
        assert "/a&b" not in part


def test_templates_use_only_parts_that_exist() -> None:
    templates = files("horsies.web") / "templates"
    for path in (each for folder in (templates, templates / "live") for each in folder.iterdir() if each.is_file()):
        text = path.read_text(encoding="utf-8")
        unknown = [name for name in re.findall(r"\bm\.(\w+)", text) if not hasattr(Tags, name)]
        assert (unknown, re.findall(r"import .* as m\b", text)) == ([], []), path.name
