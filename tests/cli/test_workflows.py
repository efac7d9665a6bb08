"""`horsies workflows` for an operator. The tests advance the graphs step by step, so that each state is known."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner, Result

from horsies.cli.main import main
from horsies.db.broker import PostgresBroker
from horsies.model.graph import Graph, NodeKind, Ref, RefMode, WorkflowStatus
from tests.fixtures.journey import column, row
from tests.workflows.steps import ending_of, node, run_all_tasks, start_run, states, status, take_batch

Workflows = Callable[..., Result]


@pytest.fixture
def workflows(database: str, monkeypatch: pytest.MonkeyPatch) -> Workflows:
    monkeypatch.delenv("HORSIES_APP", raising=False)
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    return lambda *words: CliRunner().invoke(main, ["workflows", *words])


def listed(workflows: Workflows, *words: str) -> list[str]:
    return [found["id"] for found in json.loads(workflows("list", "--json", *words).stdout)["workflows"]]


def deep() -> Graph:
    """A source, a map over it, and a sub-workflow after that."""
    each = (Ref(("item",), 0, RefMode.EACH),)
    part = Graph("part", (node(0, node_id="first"), node(1, 0, node_id="second")))
    return Graph(
        "deep",
        (
            node(0, node_id="source"),
            node(1, 0, node_id="every", kind=NodeKind.MAP, refs=each),
            node(2, 1, node_id="sub", kind=NodeKind.WORKFLOW, terms=None, child=part),
        ),
    )


@pytest.fixture
def failed_map(broker: PostgresBroker, sql: psycopg.Connection) -> str:
    run = start_run(broker, deep())
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result="[1, 2, 3]")])
    run_all_tasks(broker, sql, {(1, 1)})
    return run


# -- list


def test_without_runs_there_is_nothing_to_list(workflows: Workflows) -> None:
    found = workflows("list")
    assert (found.exit_code, found.stdout, found.stderr) == (0, "", "no workflows\n")
    assert json.loads(workflows("list", "--json").stdout) == {"workflows": [], "next_after": None}


def test_runs_are_listed_newest_first_without_their_parts(workflows: Workflows, broker: PostgresBroker) -> None:
    runs = [start_run(broker, deep()) for _ in range(3)]
    assert listed(workflows) == runs[::-1]
    text = workflows("list").stdout.splitlines()
    assert text[0].split() == ["ID", "NAME", "STATUS", "STARTED", "AGE", "TOOK", "LEFT", "ERROR"]
    assert [line.split()[0] for line in text[1:]] == runs[::-1]


def test_pages_have_no_gaps_or_overlaps_even_for_runs_of_the_same_time(
    workflows: Workflows, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    runs = {start_run(broker, Graph("one", (node(0),)), str(uuid4())) for _ in range(7)}
    sql.execute("update horsies.workflows set created_at = '2026-01-01'")
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = json.loads(workflows("list", "--json", "--limit", "3", *after).stdout)
        seen += [found["id"] for found in page["workflows"]]
        if page["next_after"] is None:
            break
        after = ["--after", page["next_after"]]
    assert len(seen) == 7
    assert set(seen) == runs


def test_a_page_that_is_not_the_last_shows_how_to_get_the_next(workflows: Workflows, broker: PostgresBroker) -> None:
    first, second = (start_run(broker, Graph("one", (node(0),))) for _ in range(2))
    found = workflows("list", "--limit", "1")
    assert f"there are more: add --after {second}" in found.stderr
    assert listed(workflows, "--after", second) == [first]


def test_runs_are_filtered_by_status_name_and_age(
    workflows: Workflows, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    old, paused, other = (start_run(broker, Graph(name, (node(0),))) for name in ("one", "one", "two"))
    sql.execute("update horsies.workflows set created_at = now() - interval '3 hours' where id = %s", [old])
    workflows("pause", paused)
    assert listed(workflows, "--status", "paused") == [paused]
    assert listed(workflows, "--status", "RUNNING", "--status", "PAUSED") == [other, paused, old]
    assert listed(workflows, "--name", "two") == [other]
    assert listed(workflows, "--since", "2h") == [other, paused]
    assert listed(workflows, "--since", "2000-01-01T00:00") == [other, paused, old]
    assert listed(workflows, "--since", "2999-01-01") == []
    assert listed(workflows, "--until", "2h") == [old]
    assert listed(workflows, "--since", "2h", "--before", "2000-01-01") == []


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("list", "--since", "yesterday"), 2, "'yesterday' is not a time"),
        (("list", "--status", "LOST"), 2, "'LOST' is not one of"),
        (("list", "--after", str(uuid4())), 1, "give --after an id that was listed"),
        (("show", "one"), 2, "is not the id of a workflow"),
        (("show", str(uuid4())), 1, "there is no workflow"),
        (("pause",), 2, "Missing argument 'ID...'"),
    ],
)
def test_invalid_arguments_are_refused(workflows: Workflows, words: tuple[str, ...], code: int, expected: str) -> None:
    found = workflows(*words)
    assert (found.exit_code, expected in found.stderr) == (code, True), found.stderr


# -- show


def test_a_run_is_shown_with_its_parts_its_errors_and_how_long_they_took(
    workflows: Workflows, failed_map: str, sql: psycopg.Connection
) -> None:
    sql.execute("update horsies.finished set started_at = finished_at - interval '75 seconds'")
    text = workflows("show", failed_map).stdout
    assert f"id:       {failed_map}\nstatus:   FAILED\n" in text
    assert "error:    BROKEN: " in text
    assert "└─ source  COMPLETED 1m 15s\n" in text
    assert "every (for each item)  FAILED" in text
    assert "3 items: 2 COMPLETED, 1 FAILED  BROKEN: " in text
    assert "sub (workflow part)  SKIPPED" in text
    assert "╎  └─ first  PENDING" in text or "╎  └─ first  SKIPPED" in text


def test_json_has_the_whole_tree(workflows: Workflows, failed_map: str) -> None:
    known: dict[str, Any] = json.loads(workflows("show", failed_map, "--json").stdout)
    assert (known["id"], known["name"], known["status"]) == (failed_map, "deep", "FAILED")
    source, every, sub = known["nodes"]
    assert (source["kind"], source["status"], source["items"], source["workflow"]) == ("task", "COMPLETED", None, None)
    assert source["started_at"] <= source["finished_at"]
    assert every["items"] == {"COMPLETED": 2, "FAILED": 1}
    assert every["error"].keys() == {"error_code", "message"}  # the data may contain secrets
    assert [inner["node_id"] for inner in sub["workflow"]["nodes"]] == ["first", "second"]


def test_the_items_of_a_map_are_shown_by_the_id_of_its_run(
    workflows: Workflows, failed_map: str, sql: psycopg.Connection
) -> None:
    (run,) = column(sql, "select id::text from horsies.workflows where is_map")
    lines = workflows("show", str(run)).stdout.splitlines()
    assert [line.split()[:2] for line in lines[-3:]] == [
        ["every[0]", "COMPLETED"],
        ["every[1]", "FAILED"],
        ["every[2]", "COMPLETED"],
    ]


def test_a_running_node_is_shown_as_running(workflows: Workflows, broker: PostgresBroker) -> None:
    run = start_run(broker, Graph("one", (node(0, node_id="only"),)))
    assert "only  ENQUEUED" in workflows("show", run).stdout
    take_batch(broker)
    assert "only  RUNNING 0." in workflows("show", run).stdout


# -- pause, resume, cancel, retry


def test_a_run_is_paused_resumed_cancelled_and_retried(
    workflows: Workflows, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("one", (node(0), node(1, 0))))
    for words, done, after in [
        (("pause", run), "paused", WorkflowStatus.PAUSED),
        (("resume", run), "resumed", WorkflowStatus.RUNNING),
        (("cancel", run, "--yes"), "cancelled", WorkflowStatus.CANCELLED),
        (("retry", run), "retried", WorkflowStatus.RUNNING),
    ]:
        found = workflows(*words)
        assert (found.exit_code, found.stdout) == (0, f"{run} (one): {done}\n")
        assert status(sql, run) is after
        again = workflows(*words)
        assert (again.exit_code, again.stdout) == (0, f"{run} (one): is {after} already\n")


@pytest.mark.parametrize("verb", ["pause", "cancel"])
def test_a_dry_run_shows_what_would_be_done_and_changes_nothing(
    workflows: Workflows, broker: PostgresBroker, sql: psycopg.Connection, verb: str
) -> None:
    run = start_run(broker, Graph("one", (node(0),)))
    found = workflows(verb, run, "--dry-run")
    assert found.exit_code == 0
    assert "would be" in found.stdout
    assert status(sql, run) is WorkflowStatus.RUNNING
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


def test_a_cancellation_needs_confirmation_and_is_refused_without_a_terminal(
    workflows: Workflows, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("one", (node(0),)))
    found = workflows("cancel", run)
    assert found.exit_code == 2
    assert "--yes" in found.stderr
    assert status(sql, run) is WorkflowStatus.RUNNING


def test_each_result_is_printed_and_a_refusal_fails_the_command(
    workflows: Workflows, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run, finished = (start_run(broker, Graph("one", (node(0),))) for _ in range(2))
    sql.execute("update horsies.workflows set status = 'COMPLETED' where id = %s", [finished])
    unknown = str(uuid4())
    found = workflows("pause", unknown, finished, run)
    assert found.exit_code == 1
    assert found.stdout == f"{run} (one): paused\n"
    assert found.stderr == (
        f"{unknown}: there is no such workflow\n{finished} (one): is COMPLETED, and cannot be paused\n"
    )
    results = json.loads(workflows("resume", finished, run, "--json").stdout)["workflows"]
    assert [(each["id"], each["outcome"]) for each in results] == [(finished, "refused"), (run, "changed")]


def test_a_part_of_a_workflow_is_not_retried_alone(
    workflows: Workflows, failed_map: str, sql: psycopg.Connection
) -> None:
    (part,) = column(sql, "select id::text from horsies.workflows where is_map")
    found = workflows("retry", str(part))
    assert found.exit_code == 1
    assert f"it is a part of workflow {failed_map}; retry that one" in found.stderr


def test_a_resume_reaches_a_part_that_paused_by_itself(
    workflows: Workflows, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    inner = Graph("inner", (node(0), node(1, 0)))
    run = start_run(broker, Graph("outer", (node(0, kind=NodeKind.WORKFLOW, terms=None, child=inner),)))
    (part,) = column(sql, "select id::text from horsies.workflows where parent_node is not null")
    workflows("pause", str(part))
    assert (status(sql, run), status(sql, str(part))) == (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED)
    assert workflows("resume", run).stdout == f"{run} (outer): resumed\n"
    assert status(sql, str(part)) is WorkflowStatus.RUNNING
    assert states(sql, str(part))[0] == "ENQUEUED"
