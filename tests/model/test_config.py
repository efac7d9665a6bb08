import copy
import dataclasses
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.config import (
    AppConfig,
    CustomQueueConfig,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    RetentionConfig,
    WorkerResilienceConfig,
)
from horsies.model.errors import ConfigError, QueueError
from horsies.model.payload_errors import PayloadLimits

URL = "postgresql://ann:S3cr3t@db.example/app"
HIGH, LOW = CustomQueueConfig(name="high", priority=1), CustomQueueConfig(name="low", priority=200)


def problems_of(kind: Any, **values: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    assert f"in {kind.__name__}:" in str(caught.value)
    assert "S3cr3t" not in str(caught.value)
    return caught.value.problems


def only_problem(kind: Any, **values: Any) -> str:
    problems = problems_of(kind, **values)
    assert len(problems) == 1
    return problems[0]


# What holds for every configuration


@pytest.mark.parametrize(
    "config",
    [
        PostgresConfig(database_url=URL),
        HIGH,
        WorkerResilienceConfig(),
        RecoveryConfig(),
        RetentionConfig(),
        AppConfig.for_database_url(URL),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_configuration_cannot_be_changed_and_can_be_copied(config: Any):
    name = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, None)
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - made on the line itself
    assert hash(config) == hash(copy.copy(config))


def test_all_problems_are_reported_together():
    problems = problems_of(
        PostgresConfig, database_url="mysql://h", listen_url="", schema="pg_x", pool_max_size="4", keepalives_count=0
    )
    assert [problem.split()[0] for problem in problems] == [
        "database_url",
        "listen_url",
        "schema",
        "pool_max_size",
        "keepalives_count",
    ]


NUMBERS = [
    (kind, required, field.name)
    for kind, required in (
        (PostgresConfig, {"database_url": URL}),
        (CustomQueueConfig, {"name": "q"}),
        (WorkerResilienceConfig, {}),
        (RecoveryConfig, {}),
        (AppConfig, {}),
    )
    for field in dataclasses.fields(kind)
    if field.type in {int, int | None} or field.name == "prefetch_buffer"
]


@pytest.mark.parametrize(("kind", "required", "name"), NUMBERS)
@pytest.mark.parametrize("value", ["4", 4.0, True, [4]])
def test_a_number_of_the_wrong_type_is_reported(kind: Any, required: dict[str, Any], name: str, value: object):
    problem = only_problem(kind, **required, **{name: value})
    assert problem.startswith(f"{name} must be")
    assert repr(value) in problem


# PostgresConfig


def test_the_password_is_in_the_conninfo_and_nowhere_else():
    config = AppConfig.for_database_url(URL)
    assert config.broker is not None
    assert config.broker.conninfo == URL
    assert "S3cr3t" not in repr(config)
    assert "postgresql://ann:***@db.example/app" in repr(config)


def test_listen_uses_its_own_url_if_there_is_one():
    config = PostgresConfig(
        database_url="postgresql+psycopg://pooler/app", listen_url="postgresql+psycopg://direct/app"
    )
    assert (config.conninfo, config.listen_conninfo) == ("postgresql://pooler/app", "postgresql://direct/app")
    assert PostgresConfig(database_url="postgresql://h/app").listen_conninfo == "postgresql://h/app"


def test_a_repr_shows_every_setting():
    shown = repr(PostgresConfig(database_url=URL))
    assert all(f"{field.name}=" in shown for field in dataclasses.fields(PostgresConfig))


@pytest.mark.parametrize("schema", ["horsies", "a", "My Schema", "x" * 40, "ä", "it's", "PG_x", "pgx"])
def test_a_usable_schema_name_is_accepted(schema: str):
    assert PostgresConfig(database_url=URL, schema=schema).schema == schema


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        ("", "1 to 40"),
        ("x" * 41, "1 to 40"),
        ("ß" * 32, "63 bytes"),
        ('a"b', "double quote"),
        ("a\0b", "unprintable"),
        ("a\nb", "unprintable"),
        ("a\ud800", "unprintable"),
        ("pg_horsies", "starts with pg_"),
        (7, "must be a string"),
        (None, "must be a string"),
    ],
)
def test_an_unusable_schema_name_is_refused(schema: Any, advice: str):
    assert advice in only_problem(PostgresConfig, database_url=URL, schema=schema)


def test_a_pool_cannot_keep_more_connections_than_it_may_have():
    assert "pool_min_size 5 is above pool_max_size 4" in only_problem(
        PostgresConfig, database_url=URL, pool_min_size=5, pool_max_size=4
    )


# Queues


@pytest.mark.parametrize("name", ["a", "Media_2", "eu-west.images:small", "x" * 80])
def test_a_good_queue_name_is_accepted(name: str):
    assert CustomQueueConfig(name=name).name == name


@pytest.mark.parametrize("name", ["", "x" * 81, "a b", "a/b", "ä", "a\n", 'a"', None, 3])
def test_a_bad_queue_name_is_refused_with_what_is_allowed(name: Any):
    assert "1 to 80 letters (a-z, A-Z), digits and the characters _ - . :" in only_problem(CustomQueueConfig, name=name)


@pytest.mark.parametrize("priority", [-1, 32_768])
def test_a_priority_has_a_range(priority: int):
    assert "from 0 to 32767" in only_problem(CustomQueueConfig, name="q", priority=priority)


def test_default_mode_has_one_queue():
    assert AppConfig().queues == (CustomQueueConfig(name="default"),)
    assert AppConfig().queue_named("default").priority == 100


def test_queues_are_served_by_priority_and_then_as_listed():
    second, third = CustomQueueConfig(name="z"), CustomQueueConfig(name="a")
    config = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[LOW, second, third, HIGH])
    assert [queue.name for queue in config.queues] == ["high", "z", "a", "low"]


def test_a_queue_is_found_by_its_name():
    assert AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[LOW, HIGH]).queue_named("high") is HIGH


def test_an_unknown_queue_is_refused_with_the_known_names():
    with pytest.raises(QueueError, match="no queue 'hihg'; this app has 'high', 'low'"):
        AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[LOW, HIGH]).queue_named("hihg")


def test_changing_the_list_later_has_no_effect():
    queues = [LOW]
    config = AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=queues)
    queues.append(HIGH)
    assert config.custom_queues == (LOW,)


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ({"queue_mode": QueueMode.CUSTOM}, "add custom_queues"),
        ({"queue_mode": QueueMode.CUSTOM, "custom_queues": []}, "add custom_queues"),
        ({"custom_queues": [LOW]}, "add queue_mode=QueueMode.CUSTOM"),
        ({"queue_mode": QueueMode.CUSTOM, "custom_queues": [LOW, HIGH, LOW]}, "2 queues named 'low'"),
        (
            {"queue_mode": QueueMode.CUSTOM, "custom_queues": [LOW, "high"]},
            "custom_queues[1] must be of type CustomQueueConfig",
        ),
        ({"custom_queues": None}, "must be a list of CustomQueueConfig"),
        ({"custom_queues": "low"}, "must be a list of CustomQueueConfig"),
        ({"custom_queues": {LOW}}, "must be a list of CustomQueueConfig"),
        ({"queue_mode": "CUSTOM"}, "QueueMode.DEFAULT or QueueMode.CUSTOM"),
        ({"broker": URL}, "PostgresConfig(database_url=...)"),
        ({"resilience": None}, "WorkerResilienceConfig()"),
        ({"recovery": None}, "RecoveryConfig()"),
        ({"retention": None}, "RetentionConfig()"),
    ],
)
def test_contradicting_settings_are_refused_with_what_to_change(values: dict[str, Any], advice: str):
    assert advice in only_problem(AppConfig, **values)


# Prefetching and leases


@pytest.mark.promise("C14")
@pytest.mark.parametrize("prefetch_buffer", [1, 8, 500])
def test_a_prefetch_buffer_needs_a_lease(prefetch_buffer: int):
    assert "add claim_lease_ms" in only_problem(AppConfig, prefetch_buffer=prefetch_buffer)
    assert AppConfig(prefetch_buffer=prefetch_buffer, claim_lease_ms=5_000).lease_ms == 5_000


@pytest.mark.promise("C14")
def test_without_a_buffer_the_lease_is_a_minute_unless_set():
    assert AppConfig().lease_ms == 60_000
    assert AppConfig(claim_lease_ms=9_000).lease_ms == 9_000


@pytest.mark.promise("C14")
def test_automatic_prefetching_has_its_own_lease():
    assert AppConfig(prefetch_buffer="auto").lease_ms == 5_000
    assert AppConfig(prefetch_buffer="auto", claim_lease_ms=9_000).lease_ms == 9_000


@pytest.mark.parametrize("prefetch_buffer", [-1, "many", None, 1.5])
def test_a_buffer_is_a_number_or_auto(prefetch_buffer: Any):
    assert '"auto"' in only_problem(AppConfig, prefetch_buffer=prefetch_buffer, claim_lease_ms=5_000)


@pytest.mark.parametrize("claim_lease_ms", [0, 999, 3_600_001])
def test_a_lease_has_a_range(claim_lease_ms: int):
    assert "from 1000 to 3600000" in only_problem(AppConfig, claim_lease_ms=claim_lease_ms)


# Caps


@pytest.mark.promise("C11")
@pytest.mark.parametrize("cap", [0, -1, 1_000_001])
def test_a_cluster_wide_cap_has_a_range(cap: int):
    assert "cluster_wide_cap is" in only_problem(AppConfig, cluster_wide_cap=cap)
    assert AppConfig(cluster_wide_cap=1).cluster_wide_cap == 1
    assert AppConfig().cluster_wide_cap is None


@pytest.mark.promise("C15")
def test_an_invalid_buffer_is_reported_once_even_with_a_cap():
    with pytest.raises(ConfigError) as refused:
        AppConfig(cluster_wide_cap=-1, prefetch_buffer=-1)
    assert len(refused.value.problems) == 2
    with pytest.raises(ConfigError) as refused:
        AppConfig(cluster_wide_cap=5, prefetch_buffer=8)  # which has no lease, either
    assert len(refused.value.problems) == 2


@pytest.mark.parametrize("prefetch_buffer", [1, 8, "auto"])
def test_a_cluster_wide_cap_excludes_a_buffer(prefetch_buffer: Any):
    problem = only_problem(AppConfig, cluster_wide_cap=5, prefetch_buffer=prefetch_buffer, claim_lease_ms=5_000)
    assert f"prefetch_buffer is {prefetch_buffer!r}" in problem
    assert "set prefetch_buffer=0, or remove the cap" in problem


@pytest.mark.promise("C10")
def test_a_queue_is_uncapped_capped_or_paused():
    caps = [CustomQueueConfig(name="q", max_concurrency=cap).max_concurrency for cap in (None, 5, 0)]
    assert caps == [None, 5, 0]
    assert "max_concurrency is -1" in only_problem(CustomQueueConfig, name="q", max_concurrency=-1)


# Payloads


def test_by_default_a_payload_has_at_most_16_mib_and_is_reported_above_256_kib():
    config = AppConfig()
    assert (config.payload_warning_bytes, config.max_payload_bytes) == (262_144, 16_777_216)
    assert config.payload_limits == PayloadLimits(warning_bytes=262_144, max_bytes=16_777_216)
    assert AppConfig(payload_warning_bytes=None).payload_limits.warning_bytes is None


@pytest.mark.parametrize(("name", "low"), [("payload_warning_bytes", 1), ("max_payload_bytes", 1_000)])
def test_the_size_of_a_payload_has_a_range(name: str, low: int):
    for value in (low, 268_435_456):
        assert getattr(dataclasses.replace(AppConfig(), **{name: value}), name) == value
    for value in (low - 1, 268_435_457):
        assert f"from {low} to 268435456" in only_problem(AppConfig, **{name: value})


# Recovery

RECOVERY_RANGES = {
    "heartbeat_ms": (100, 300_000),
    "dead_after_ms": (500, 3_600_000),
    "maintenance_ms": (100, 60_000),
    "grace_ms": (0, 3_600_000),
    "snapshot_ms": (1_000, 3_600_000),
    "frozen_after_ms": (1_000, 86_400_000),
}


@pytest.mark.promise("T2")
def test_by_default_a_dead_worker_is_detected_within_15_seconds():
    """It may have beaten just before, and the maintenance leader looks once per `maintenance_ms`, a fifth later at most."""
    recovery = AppConfig().recovery
    assert recovery.dead_after_ms + 2 * recovery.maintenance_ms * 1.2 <= 15_000
    assert recovery.dead_after_ms >= 2 * recovery.heartbeat_ms
    assert recovery.frozen_after_ms == "auto"


def test_a_child_may_miss_one_ping_before_it_is_considered_frozen():
    problem = only_problem(RecoveryConfig, heartbeat_ms=3_000, frozen_after_ms=5_000)
    assert "below three heartbeats" in problem


def test_detection_of_frozen_children_can_be_disabled():
    assert RecoveryConfig(frozen_after_ms=None).frozen_after_ms is None
    assert '"auto"' in only_problem(RecoveryConfig, frozen_after_ms="never")


@pytest.mark.parametrize("name", RECOVERY_RANGES)
def test_recovery_values_are_accepted_at_both_limits_and_refused_beyond(name: str):
    low, high = RECOVERY_RANGES[name]
    others = {
        "heartbeat_ms": {"dead_after_ms": 3_600_000},
        "dead_after_ms": {"heartbeat_ms": 100},
        "frozen_after_ms": {"heartbeat_ms": 100},
    }.get(name, {})
    for value in (low, high):
        assert getattr(RecoveryConfig(**others, **{name: value}), name) == value
    for value in (low - 1, high + 1):
        assert f"from {low} to {high}" in only_problem(RecoveryConfig, **others, **{name: value})


@pytest.mark.promise("T2")
def test_one_late_heartbeat_must_not_kill_a_worker():
    problem = only_problem(RecoveryConfig, heartbeat_ms=3_000, dead_after_ms=5_999)
    assert "below two heartbeats" in problem
    assert RecoveryConfig(heartbeat_ms=3_000, dead_after_ms=6_000).dead_after_ms == 6_000


# Back-off

RANGES = {
    "db_retry_initial_ms": (100, 60_000),
    "db_retry_max_ms": (500, 300_000),
    "db_retry_max_attempts": (0, 10_000),
    "notify_poll_interval_ms": (1_000, 300_000),
}
resilience = st.builds(
    WorkerResilienceConfig, db_retry_initial_ms=st.integers(100, 500), db_retry_max_ms=st.integers(500, 300_000)
)


@pytest.mark.promise("W13")
def test_the_defaults_of_resilience():
    assert WorkerResilienceConfig() == WorkerResilienceConfig(
        db_retry_initial_ms=500, db_retry_max_ms=5_000, db_retry_max_attempts=0, notify_poll_interval_ms=5_000
    )


@pytest.mark.promise("W13")
@pytest.mark.parametrize("name", RANGES)
def test_values_are_accepted_at_both_limits_and_refused_beyond(name: str):
    low, high = RANGES[name]
    others: dict[str, int] = {"db_retry_initial_ms": 100, "db_retry_max_ms": 300_000}
    for value in (low, high):
        assert getattr(WorkerResilienceConfig(**others | {name: value}), name) == value
    for value in (low - 1, high + 1):
        assert f"{name} is {value}; choose a whole number from {low} to {high}" == only_problem(
            WorkerResilienceConfig, **others | {name: value}
        )


@pytest.mark.promise("W13")
def test_the_longest_delay_cannot_be_below_the_first():
    problem = only_problem(WorkerResilienceConfig, db_retry_initial_ms=2_000, db_retry_max_ms=1_000)
    assert "db_retry_max_ms 1000 is below db_retry_initial_ms 2000" in problem
    assert WorkerResilienceConfig(db_retry_initial_ms=2_000, db_retry_max_ms=2_000)


@pytest.mark.promise("W13")
def test_a_delay_doubles_up_to_the_longest():
    config = WorkerResilienceConfig()
    assert [config.delay_ms(attempt, 0) for attempt in range(8)] == [
        500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000
    ]  # fmt: skip


@pytest.mark.promise("W13")
def test_jitter_moves_a_delay_by_up_to_a_quarter():
    config = WorkerResilienceConfig()
    assert [config.delay_ms(2, jitter) for jitter in (-1, -0.5, 0, 0.5, 1)] == [1_500, 1_750, 2_000, 2_250, 2_500]


@pytest.mark.promise("W13")
@given(resilience, st.integers(0, 10**9), st.floats(-1, 1))
def test_a_delay_stays_within_a_quarter_and_below_the_longest(
    config: WorkerResilienceConfig, attempt: int, jitter: float
):
    bare = min(config.db_retry_initial_ms * 2 ** min(attempt, 30), config.db_retry_max_ms)
    assert round(bare * 0.75) <= config.delay_ms(attempt, jitter) <= min(round(bare * 1.25), config.db_retry_max_ms)


@pytest.mark.parametrize(("attempt", "jitter"), [(-1, 0), (0, 1.01), (0, -1.01), (0, float("nan"))])
def test_a_delay_for_invalid_arguments_is_refused(attempt: int, jitter: float):
    with pytest.raises(ValueError, match="jitter"):
        WorkerResilienceConfig().delay_ms(attempt, jitter)


# RetentionConfig


def test_all_problems_of_retention_are_reported_together():
    problems = problems_of(
        RetentionConfig, finished=7, workflows=timedelta(minutes=59), worker_states=timedelta(days=36_501), every=None
    )
    assert [problem.split()[0] for problem in problems] == ["finished", "workflows", "worker_states", "every"]
    assert "write finished=timedelta(days=7), or None for no limit" in problems[0]
    assert "choose from 1:00:00 to" in problems[1]


def test_everything_may_be_kept_without_a_limit():
    kept = RetentionConfig(finished=None, workflows=None, worker_states=None, schedule_runs=None)
    assert kept.finished is None
    assert RetentionConfig(finished=timedelta(hours=1)).finished == timedelta(hours=1)


def test_a_database_url_can_be_given_with_other_fields() -> None:
    config = AppConfig.for_database_url(URL, cluster_wide_cap=5, name="shop")
    assert config == AppConfig(broker=PostgresConfig(database_url=URL), cluster_wide_cap=5, name="shop")
    with pytest.raises(ConfigError, match="cluster_wide_cap is 0"):
        AppConfig.for_database_url(URL, cluster_wide_cap=0)
    with pytest.raises(TypeError, match="for_database_url\\(\\) creates the broker settings"):
        AppConfig.for_database_url(URL, broker=PostgresConfig(database_url=URL))
    with pytest.raises(TypeError, match="colour"):
        AppConfig.for_database_url(URL, colour="red")


@pytest.mark.parametrize("name", ["", " shop", "a" * 201, "shop\n", 7])
def test_an_app_s_name_is_checked(name: Any) -> None:
    assert only_problem(AppConfig, name=name).startswith(f"name is {name!r}; choose 1 to 200 printable characters")
