import dataclasses
import math
import os
from typing import Any

import pytest

from horsies.model.errors import ConfigError
from horsies.model.worker_config import LOGLEVELS, WorkerConfig

RANGES: dict[str, tuple[Any, Any]] = {
    "processes": (1, 1_000),
    "concurrency": (1, 100_000),
    "max_claim_batch": (0, 1_000_000),
    "max_claim_per_worker": (0, 1_000_000),
    "coalesce_notifies": (1, 1_000_000),
    "shutdown_timeout_ms": (0, 86_400_000),
}


def only_problem(**values: Any) -> str:
    with pytest.raises(ConfigError, match="in WorkerConfig:") as caught:
        WorkerConfig(**values)
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0]


@pytest.mark.promise("W15", "C2")
def test_every_setting_has_a_default():
    config = WorkerConfig()
    assert config.process_count == os.cpu_count()
    assert (config.dsn, config.app_locator, config.queues, tuple(config.imports)) == (None, None, None, ())
    assert (dict(config.queue_priorities), dict(config.queue_max_concurrency)) == ({}, {})
    assert (config.concurrency, config.max_claim_batch, config.max_claim_per_worker) == (1, 0, 0)
    assert (config.max_tasks_per_child, config.max_memory_per_child_mb) == (100, None)
    assert config.shutdown_timeout_ms is None  # no limit
    assert config.loglevel == "INFO"


@pytest.mark.parametrize("name", RANGES)
def test_values_are_accepted_at_both_limits_and_refused_beyond(name: str):
    low, high = RANGES[name]
    for value in (low, high):
        assert getattr(WorkerConfig(**{name: value}), name) == value
    for value in (low - 1, high + 1):
        assert f"{name} is {value}; choose a whole number from {low} to {high}" in only_problem(**{name: value})


@pytest.mark.parametrize("name", [*RANGES, "max_tasks_per_child"])
@pytest.mark.parametrize("value", ["4", 4.0, True])
def test_a_number_of_the_wrong_type_is_reported(name: str, value: Any):
    assert only_problem(**{name: value}).startswith(f"{name} must be a whole number")


@pytest.mark.promise("C2")
def test_a_child_runs_at_least_two_tasks_or_any_number():
    assert WorkerConfig(max_tasks_per_child=0).max_tasks_per_child == 0
    assert WorkerConfig(max_tasks_per_child=2).max_tasks_per_child == 2
    assert "choose 2 or more, or 0" in only_problem(max_tasks_per_child=1)
    assert "max_tasks_per_child is -1" in only_problem(max_tasks_per_child=-1)


@pytest.mark.promise("C5")
def test_a_memory_limit_is_any_positive_number():
    assert WorkerConfig(max_memory_per_child_mb=0.5).max_memory_per_child_mb == 0.5
    assert WorkerConfig(max_memory_per_child_mb=512).max_memory_per_child_mb == 512
    for limit in (0, -1, math.nan, math.inf, "512", True):
        assert "give a positive number of megabytes" in only_problem(max_memory_per_child_mb=limit)


@pytest.mark.promise("W15")
def test_overrides_of_queues_have_the_ranges_of_the_app():
    config = WorkerConfig(queue_priorities={"mail": 0}, queue_max_concurrency={"mail": None, "media": 0})
    assert config.queue_max_concurrency == {"mail": None, "media": 0}
    assert only_problem(queue_priorities={"mail": -1}).startswith("queue_priorities['mail'] is -1")
    assert only_problem(queue_max_concurrency={"mail": -1}).startswith("queue_max_concurrency['mail'] is -1")


@pytest.mark.parametrize("name", ["imports", "queues"])
def test_one_name_instead_of_a_list_is_refused(name: str):
    assert f"{name}=['mail']" in only_problem(**{name: "mail"})


@pytest.mark.parametrize("name", ["imports", "queues"])
def test_a_value_that_is_not_a_name_is_refused_with_its_place(name: str):
    assert f"{name}[1] must be a name, not 7" in only_problem(**{name: ["mail", 7]})


@pytest.mark.parametrize("name", ["queue_priorities", "queue_max_concurrency"])
@pytest.mark.parametrize("value", [[], [("mail", 1)], "mail", None, 7])
def test_an_override_is_a_dict_by_queue(name: str, value: Any):
    assert only_problem(**{name: value}).startswith(f"{name} must be a dict from queue to number, not {value!r}")


@pytest.mark.parametrize(
    ("dsn", "advice"), [(5, "must be a string"), ("", "is empty"), ("mysql://S3cr3t", "write postgresql")]
)
def test_a_database_is_a_connection_string(dsn: Any, advice: str):
    problem = only_problem(dsn=dsn)
    assert problem.startswith("dsn ")
    assert advice in problem
    assert "S3cr3t" not in problem


def test_the_locator_must_be_a_string():
    assert "app_locator must be of type str, not int; write app_locator='package.module:attribute'" in only_problem(
        app_locator=7
    )


def test_a_worker_without_any_queue_is_refused():
    assert "queues is empty" in only_problem(queues=[])


def test_changing_the_lists_later_has_no_effect():
    names, numbers = ["mail"], {"mail": 1}
    config = WorkerConfig(queues=names, imports=names, queue_priorities=numbers)
    names.append("media")
    numbers["media"] = 2
    assert (config.queues, config.imports, config.queue_priorities) == (("mail",), ("mail",), {"mail": 1})


@pytest.mark.parametrize("loglevel", ["LOUD", "info", 20])
def test_a_log_level_is_one_of_python_s_names(loglevel: Any):
    assert f"choose one of {', '.join(LOGLEVELS)}" in only_problem(loglevel=loglevel)


def test_all_problems_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        WorkerConfig(processes=0, max_tasks_per_child=1, max_memory_per_child_mb=0, loglevel="LOUD")
    assert [problem.split()[0] for problem in caught.value.problems] == [
        "processes",
        "max_tasks_per_child",
        "max_memory_per_child_mb",
        "loglevel",
    ]


def test_a_configuration_cannot_be_changed_and_does_not_show_its_database():
    config, name = WorkerConfig(dsn="postgresql://ann:S3cr3t@db.example/app"), "processes"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, 2)
    assert "S3cr3t" not in repr(config)
