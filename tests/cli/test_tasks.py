"""`horsies tasks` for an operator."""

import signal
from collections.abc import Generator, Mapping, Sequence

import click
import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.cli.bulk import run_bulk
from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op
from horsies.ops import bulk
from horsies.ops.operation import Verb
from horsies.tasks.finish import finish_tasks
from horsies.tasks.inspect import TaskFilter, TaskSummary
from tests.cli.conftest import Cli
from tests.fixtures.journey import ME, claim, column, completed, do, failed, new_task, send, send_new
from tests.fixtures.shops import Shop

ERROR = '{"error_code": "BROKEN", "message": "it broke", "data": {"card": "4711-secret"}}'


def end_all(broker: PostgresBroker, error: str = ERROR) -> list[str]:
    held = claim(broker, 1000, queues=["default", "parcels", "letters"])
    do(broker, finish_tasks(ME, [failed(one, error=error) for one in held]))
    return [one.id for one in held]


# -- list


def test_a_list_shows_full_ids_and_how_to_get_the_next_page(cli: Cli, broker: PostgresBroker) -> None:
    tasks = send_new(broker, 3)
    first = cli("tasks", "list", "--limit=2")
    assert first.code == 0
    assert [line.split()[0] for line in first.out.splitlines()[1:]] == [tasks[2].id, tasks[1].id]
    assert f"--after {tasks[1].id}" in first.err
    rest = cli("tasks", "list", "--limit=2", "--after", tasks[1].id)
    assert tasks[0].id in rest.out
    assert rest.err == ""


def test_a_list_as_json_has_stable_keys(cli: Cli, broker: PostgresBroker) -> None:
    send_new(broker, 2)
    (failed_id, *_) = end_all(broker)
    found = cli("tasks", "list", "--json", "--status=failed", "--since=1h", "--limit=1").json
    assert found.keys() == {"tasks", "next_after", "is_complete", "searched_until"}
    (line,) = found["tasks"]
    assert line.keys() == {
        "id", "task_name", "queue_name", "priority", "status", "attempts", "claim_no", "sent_at", "enqueued_at", "started_at",
        "finished_at", "worker", "error_code", "root_id", "message", "running_for_s", "node_id", "is_sensitive",
        "max_retries",
    }  # fmt: skip
    assert found["next_after"] == line["id"] != failed_id


@pytest.mark.parametrize("when", ["1x", "yesterday", "", "-2h", "2030-13-01"])
def test_an_invalid_time_is_reported(cli: Cli, when: str) -> None:
    ran = cli("tasks", "list", "--since", when)
    assert ran.code == 2
    assert "write 90s, 30m, 2h, 7d or 1w for a time ago" in ran.err


def test_a_time_that_is_out_of_range_is_reported(cli: Cli) -> None:
    ran = cli("tasks", "list", "--since", "99999999w")
    assert ran.code == 2
    assert "--since/--until is out of range; use a shorter interval" in ran.err


def test_the_tasks_of_a_worker_are_found_by_a_prefix_of_its_id(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker)
    claim(broker)
    register(sql, ME)
    assert len(cli("tasks", "list", "--json", f"--worker={ME[:4]}").json["tasks"]) == 1
    assert "no worker has an id that starts with 'ffff'" in cli("tasks", "list", "--worker=ffff").err


def register(sql: psycopg.Connection, worker: str) -> None:
    sql.execute(
        "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
        "values (%s, 'here', 1, 2, 3, '{default}', '0')",
        [worker],
    )


def test_the_tasks_of_a_workflow_are_found_and_its_nodes_are_not_retried_alone(cli: Cli, shop: Shop) -> None:
    handle = shop.app.workflow("ship", tasks=[shop.pack.node(node_id="box")(1)]).start()
    shop.pack.send(2)
    end_all(shop.app.broker)
    (line,) = cli("tasks", "list", "--json", "--workflow", handle.workflow_id).json["tasks"]
    assert line["root_id"] == handle.workflow_id
    assert f"{handle.workflow_id} (ship), node box" in cli("tasks", "show", line["id"]).out
    assert "retry the workflow" in cli("tasks", "retry", line["id"], "--force").out


# -- show


def test_a_task_is_shown_with_its_attempts_and_without_its_payload(cli: Cli, shop: Shop) -> None:
    handle = shop.label.with_options(key="k-7").send("top-secret", {})
    end_all(shop.app.broker)
    handle.retry()
    end_all(shop.app.broker)
    for words in ([], ["--json"]):
        ran = cli("tasks", "show", handle.task_id, *words)
        assert ran.code == 0
        assert all(text in ran.out for text in ("label", "letters", "FAILED", "BROKEN", "it broke", "k-7", ME))
        assert "secret" not in ran.out


def test_the_payload_is_shown_on_request(cli: Cli, shop: Shop) -> None:
    handle = shop.label.send("top-secret" + "x" * 10_000, {})
    end_all(shop.app.broker)
    ran = cli("tasks", "show", handle.task_id, "--payload")
    assert "top-secret" in ran.out
    assert "4711-secret" in ran.out
    assert len(ran.out) < 6_000
    assert len(cli("tasks", "show", handle.task_id, "--payload", "--json").json["args"]) > 10_000


def test_a_traceback_is_always_shown(cli: Cli, broker: PostgresBroker) -> None:
    (task,) = send_new(broker)
    end_all(broker, '{"error_code": "E", "message": "m", "data": {"traceback": "line 7 of shop.py"}}')
    assert "line 7 of shop.py" in cli("tasks", "show", task.id).out


def test_the_last_error_of_a_task_that_waits_for_its_retry_is_shown_in_full(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    (task,) = send_new(broker)
    end_all(
        broker, '{"error_code": "E", "message": "the first error", "data": {"secret": 4711, "traceback": "line 7"}}'
    )
    cli("tasks", "retry", task.id)
    shown = cli("tasks", "show", task.id).out
    assert "\nerror of attempt 1:\nthe first error\n\nline 7\n" in shown
    sql.execute("update horsies.tasks set is_sensitive = true")
    assert "the first error" not in cli("tasks", "show", task.id).out


# -- cancel and retry


def test_named_tasks_are_retried_and_failures_are_reported(cli: Cli, broker: PostgresBroker) -> None:
    send_new(broker, 2)
    first, second = end_all(broker)
    assert cli("tasks", "retry", first).out == f"{first}: it is in its queue again, and due now\n"
    ran = cli("tasks", "retry", first, second, "--json")
    assert ran.code == 1
    assert f'"{first}": "NOT_ENDED"' in ran.out
    assert f'"{second}": "RETRIED"' in ran.out


def test_named_tasks_are_cancelled(cli: Cli, broker: PostgresBroker) -> None:
    (running,) = send_new(broker)
    claim(broker)
    (waiting,) = send_new(broker)
    ran = cli("tasks", "cancel", running.id, waiting.id)
    assert ran.code == 0
    assert f"{waiting.id}: it had not started, and will not" in ran.out
    assert f"{running.id}: it is running; it was requested to stop" in ran.out


def test_all_matching_tasks_are_retried_in_batches(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    send(broker, *(new_task("pay") for _ in range(5)), new_task("add"))
    end_all(broker)
    assert cli("tasks", "retry", "--task=pay", "--yes").out == "5: it is in its queue again, and due now\n"
    assert column(sql, "select task_name from horsies.finished") == ["add"]


def test_without_a_status_only_failed_tasks_are_retried(cli: Cli, broker: PostgresBroker) -> None:
    send_new(broker, 2)
    first, second = claim(broker)
    do(broker, finish_tasks(ME, [completed(first), failed(second)]))
    assert cli("tasks", "retry", "--queue=default", "--yes", "--json").json["outcomes"] == {"RETRIED": 1}
    assert cli("tasks", "retry", "--status=COMPLETED", "--yes", "--json").json["outcomes"] == {"SUCCEEDED": 1}
    assert cli("tasks", "retry", "--status=COMPLETED", "--yes", "--force", "--json").json["outcomes"] == {"RETRIED": 1}


def test_all_matching_tasks_are_cancelled(cli: Cli, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker)
    claim(broker)
    send_new(broker, 2)
    assert cli("tasks", "cancel", "--task=add", "--status=PENDING", "--yes", "--json").json["outcomes"] == {
        "CANCELLED": 2
    }
    assert column(sql, "select status from horsies.tasks where cancel_requested_at is null") == ["RUNNING"]
    assert cli("tasks", "cancel", "--task=add", "--yes", "--json").json["outcomes"] == {"REQUESTED": 1}


@pytest.mark.parametrize("verb", ["cancel", "retry", "purge"])
def test_an_empty_filter_never_means_everything(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection, verb: str
) -> None:
    """For example `--worker "$WORKER"` if the variable is not set."""
    send_new(broker)
    end_all(broker)
    send_new(broker)
    everything = "select row(id, status, claim_no)::text from horsies.all_tasks order by id"
    before = column(sql, everything)
    for option in ("--worker", "--queue", "--task", "--error-code", "--since", "--until", "--workflow"):
        cli("tasks", verb, f"{option}=", "--yes")
        assert column(sql, everything) == before, option


def test_a_dry_run_counts_and_changes_nothing(cli: Cli, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker, 3)
    assert cli("tasks", "cancel", "--task=add", "--dry-run").out == "would cancel 3 tasks\n"
    end_all(broker)
    assert cli("tasks", "retry", "--task=add", "--dry-run").out == "would retry 3 tasks\n"
    assert cli("tasks", "purge", "--all", "--dry-run").out == "would purge 3 tasks\n"
    assert len(column(sql, "select id from horsies.finished")) == 3


def test_many_tasks_are_changed_only_after_confirmation(
    cli: Cli, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send_new(broker)
    ran = cli("tasks", "cancel", "--task=add")
    assert ran.code == 2
    assert "stdin is not a terminal; pass --yes to confirm or --dry-run to preview" in ran.err
    assert len(column(sql, "select id from horsies.tasks")) == 1


def test_a_dry_run_with_ids_shows_their_statuses(cli: Cli, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    (task,) = send_new(broker, 1)
    ran = cli("tasks", "cancel", task.id, ME, "--dry-run")
    assert ran.out == f"{task.id}: PENDING, would cancel it\n{ME}: not found\n"
    assert cli("tasks", "retry", task.id, "--dry-run").out == f"{task.id}: PENDING, left as it is\n"
    assert cli("tasks", "cancel", task.id, "--dry-run", "--json").json == {"tasks": {task.id: "PENDING"}}
    assert column(sql, "select status from horsies.tasks") == ["PENDING"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cancel"], "select what to cancel"),
        (["retry"], "select what to retry"),
        (["retry", ME, "--task=add"], "not both"),
        (["purge"], "--all"),
        (["purge", "--all", "--task=add"], "--all"),
        (["purge", "--status=PENDING"], "not for PENDING"),
        (["retry", "--status=RUNNING"], "not for RUNNING"),
        (["cancel", "--status=FAILED"], "not for FAILED"),
        (["show", "x0198"], "is not the id of a task, nor the beginning of one"),
        (["show"], "ID"),
        (["list", "--status=LOST"], "--status"),
        (["list", "--limit=0"], "--limit"),
        (["list", "--task="], "Invalid value for '--task': it is empty"),
        (["purge", "--message="], "Invalid value for '--message': it is empty"),
        (["retry", "--key="], "Invalid value for '--key': it is empty"),
        (["cancel", "--workflow="], "Invalid value for '--workflow': it is empty"),
    ],
)
def test_wrong_usage_is_reported(cli: Cli, words: list[str], expected: str) -> None:
    ran = cli("tasks", *words)
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err


# -- purge, and Ctrl-C


def test_tasks_that_ended_before_a_time_are_deleted(cli: Cli, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send_new(broker, 3)
    old, *_ = end_all(broker)
    send_new(broker)
    sql.execute("update horsies.finished set finished_at = now() - interval '8 d' where id = %s", [old])
    assert cli("tasks", "purge", "--status=FAILED", "--before=7d", "--yes").out == "1: deleted\n"
    assert len(column(sql, "select id from horsies.finished where id <> %s", old)) == 2
    assert cli("tasks", "purge", "--all", "--yes").out == "2: deleted\n"
    assert len(column(sql, "select id from horsies.tasks")) == 1


@pytest.fixture
def ctrl_c() -> Generator[None]:
    """Handle Ctrl-C: a process in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_between_two_batches_and_reports_the_progress(
    app_config: AppConfig, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    send_new(broker, 6)
    app, seen = Horsies(app_config), list[str]()

    def act(batch: Sequence[TaskSummary]) -> Verb[Mapping[str, int]]:
        def run() -> Op[Mapping[str, int]]:
            signal.raise_signal(signal.SIGINT)
            seen.extend(task.id for task in batch)
            yield from ()
            return {"DONE": len(batch)}

        return run

    action = bulk.BulkAction(app.broker, TaskFilter(), act, frozenset(), "alice", "touch", "all")
    with pytest.raises(click.ClickException, match=r"stopped by Ctrl-C after 2 of 6; run it again for the rest"):
        run_bulk(app.ops, action, verb="touch", words={"DONE": "done"}, dry_run=False, yes=True, as_json=False)
    app.close()
    assert capsys.readouterr().out == "2: done\n"
    assert len(seen) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# -- prefixes of ids


def test_a_unique_prefix_of_an_id_is_enough(cli: Cli, broker: PostgresBroker) -> None:
    first, second = "aaaa0000-0000-7000-8000-000000000001", "aaaa0000-0000-7000-8000-000000000002"
    send(broker, new_task(task_id=first))
    end_all(broker)
    assert cli("tasks", "show", "AAAA").out.splitlines()[0].split() == ["id", first]
    send(broker, new_task(task_id=second))
    ran = cli("tasks", "cancel", "aaaa0", second)
    assert ran.code == 1
    assert f"start with 'aaaa0':\n  {first}\n  {second}\n" in ran.err
    assert cli("tasks", "list", "--status=PENDING", "--json").json["tasks"], "nothing was cancelled"
    assert "no task has an id that starts with 'bbbb'" in cli("tasks", "retry", "bbbb").err
