"""Invalid rows from a generator with a fixed seed: workers must handle every row that the constraints accept."""

import random
from collections.abc import Iterator, Mapping, Sequence

import psycopg
from psycopg import sql as syntax

MOMENTS = (
    "now()",
    "now() + interval '1 second'",
    "now() - interval '1 hour'",
    "'infinity'",
    "'-infinity'",
    "'0044-03-15 BC'",
    "'0001-01-01'",
    "'1969-12-31 23:59:59+00'",
    "'9999-12-31 23:59:59+00'",
    "'9999-12-31 23:59:59-12'",
    "'20000-01-01'",
    "'294276-12-31'",
)
COUNTS = ("0", "1", "5", "-1", "1000000000", "2147483646", "2147483647", "-2147483648")
ARRAYS = (
    "'{}'",
    "'{0}'",
    "'{1,1}'",
    "'{NULL}'",
    "'{1,NULL}'",
    "'{{1,2},{3,4}}'",
    "'[5:6]={1,2}'",
    "'{-1}'",
    "'{2147483647}'",
)
NAMES = (
    "''",
    "' '",
    "'no such thing'",
    "repeat('x', 900)",
    "repeat('x', 10000)",
    r"E'a\nb'",
    r"E'\u202e\u00e9'",
    "'a b c'",
    "'*'",
    "'%s %(a)s {0}'",
)
TEXTS = ("''", "'garbage'", "'{}'", "'[1]'", '\'{"traceparent": "x"}\'', "repeat('x', 100000)")
JSON = (
    "'{}'",
    "'[]'",
    "'null'",
    "'1'",
    "'\"x\"'",
    "'{\"value\": 1}'",
    '\'{"value": 1, "value": 2}\'',
    '\'{"value": 1, "other": 2}\'',
    r"""'{"value": "\u0000"}'""",
    r"""'{"value": "\ud800"}'""",
    "'{\"value\": 1e999}'",
    "('{\"value\": ' || repeat('[', 3000) || repeat(']', 3000) || '}')::json",
    "('{\"value\": ' || repeat('9', 5000) || '}')::json",
)
IDS = ("gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'")

TASKS: Mapping[str, Sequence[str]] = {
    "id": IDS,
    "task_name": (*NAMES, "'raise_error'", "'add'", "'nap'"),
    "queue_name": NAMES,
    "priority": COUNTS,
    "ready": ("true", "false"),
    "args": JSON,
    "unknown_since": MOMENTS,
    "refused_by": ARRAYS,
    "refusal": JSON,
    "sent_at": MOMENTS,
    "enqueued_at": MOMENTS,
    "good_until": MOMENTS,
    "timeout_ms": COUNTS,
    "retry_delays_ms": ARRAYS,
    "retry_jitter": ("0", "1", "0.5", "-1", "7", "'NaN'", "'Infinity'"),
    "retry_for": ("'{}'", "'{NULL}'", "'{UNHANDLED_ERROR}'", "'{{A,B},{C,D}}'", "'[3:4]={WORKER_CRASHED,A}'"),
    "failed_attempts": (
        "'{}'",
        "array['1', '[]', null]::json[]",
        "array[array['{}'], array['{}']]::json[]",
        "array_fill('{\"attempt\": 1}'::json, array[100])",
        "array_fill('{}'::json, array[2], array[7])",
    ),
    "cancel_requested_at": MOMENTS,
    "progress": JSON,
    "attempts": COUNTS,
    "claim_no": COUNTS,
    "claimed_at": MOMENTS,
    "lease_until": MOMENTS,
    "started_at": MOMENTS,
    "root_id": IDS,
    "node_id": IDS,
    "takes_inputs": ("true", "false"),
    "trace": TEXTS,
}
FINISHED = {
    **{name: values for name, values in TASKS.items() if name not in ("ready", "cancel_requested_at", "lease_until", "takes_inputs")},
    "status": ("'COMPLETED'", "'FAILED'", "'CANCELLED'", "'EXPIRED'"),
    "result": JSON,
    "error": JSON,
    "error_code": NAMES,
    "finished_at": MOMENTS,
    "claimed_by": IDS,
}  # fmt: skip
KEYS = {
    "task_name": NAMES,
    "key": NAMES,
    "task_id": IDS,
    "send_id": IDS,
    "args_hash": TEXTS,
    "key_window": ("'0'", "'-1 day'", "'1 day'", "'100000000 years'", "'1000 years'", "'infinity'", "'50 years'"),
    "ended_at": MOMENTS,
    "previous_task_ids": ("'{}'", "array[gen_random_uuid()]", "array[array[gen_random_uuid()]]", "array[null]::uuid[]"),
}
SCHEDULES = {
    "name": NAMES,
    "task_name": NAMES,
    "queue_name": NAMES,
    "priority": COUNTS,
    "args": JSON,
    "timeout_ms": COUNTS,
    "retry_delays_ms": ARRAYS,
    "retry_jitter": TASKS["retry_jitter"],
    "retry_for": TASKS["retry_for"],
    "pattern": ("'{}'", "'[]'", "'1'", "'{\"kind\": \"cron\"}'", "'{\"kind\": [1]}'", "'{\"kind\": \"interval\", \"seconds\": \"x\"}'", "'{\"kind\": \"interval\", \"hours\": 1e99}'"),
    "timezone": (*NAMES, "'UTC'", "'../../etc/passwd'", "'Europe'"),
    "max_catch_up_runs": COUNTS,
    "jitter_ms": COUNTS,
    "overlap": NAMES,
    "next_slot_at": MOMENTS,
    "last_slot_at": MOMENTS,
    "last_task_id": IDS,
}  # fmt: skip
WORKFLOWS = {
    "status": ("'RUNNING'", "'PAUSED'", "'PENDING'", "'COMPLETED'", "'FAILED'"),
    "ancestors": ("'{}'", "array[gen_random_uuid()]", "array[null]::uuid[]"),
    "parent_node": IDS,
    "name": NAMES,
    "on_error": NAMES,
    "output": COUNTS,
    "success_cases": (*JSON, "'[[0]]'", "'[[\"x\"]]'", "'[1]'"),
    "optional": ("'{}'", "'{NULL}'", "'{{1}}'"),
    "is_map": ("true", "false"),
    "max_parallel": COUNTS,
    "in_flight": COUNTS,
    "unresolved": COUNTS,
    "error": JSON,
    "time_limit_ms": (*COUNTS, "9223372036854775807"),
    "deadline": MOMENTS,
    "finished_at": MOMENTS,
}
NODES = {
    "kind": ("'task'", "'workflow'", "'map'", "'nonsense'"),
    "status": ("'PENDING'", "'READY'", "'ENQUEUED'", "'RUNNING'", "'COMPLETED'", "'FAILED'", "'SKIPPED'"),
    "propagated": ("true", "false"),
    "waits_for": ("'{}'", "'{0}'", "'{NULL}'", "'{{1}}'"),
    "dependents": ("'{}'", "array[gen_random_uuid()]", "array[null]::uuid[]"),
    "needed": COUNTS,
    "resolved": COUNTS,
    "succeeded": COUNTS,
    "task_name": (*NAMES, "'echo'", "null"),
    "queue_name": (*NAMES, "'default'", "null"),
    "priority": (*COUNTS, "null"),
    "timeout_ms": COUNTS,
    "retry_delays_ms": ARRAYS,
    "retry_jitter": ("0", "7", "null"),
    "good_until": MOMENTS,
    "args": (*JSON, "null"),
    "refs": JSON,
    "inputs": ("'{}'", "array[gen_random_uuid()]", "array[null]::uuid[]"),
    "takes_inputs": ("true", "false"),
    "source": IDS,
    "item": JSON,
    "child_id": IDS,
    "task_id": IDS,
    "result": JSON,
    "error": JSON,
}


def hostile(
    columns: Mapping[str, Sequence[str]], valid: Mapping[str, str], count: int, seed: int
) -> Iterator[dict[str, str]]:
    """Yield rows as SQL expressions by column: valid rows with one to three hostile columns."""
    chance = random.Random(seed)  # noqa: S311 - must be repeatable
    for _ in range(count):
        picked = chance.sample(sorted(columns), chance.randint(1, 3))
        yield {**valid, **{column: chance.choice(columns[column]) for column in picked}}


def insert(sql: psycopg.Connection, table: str, values: Mapping[str, str], returning: str) -> tuple[object, ...] | None:
    """Insert a row. Returns the `returning` columns, or None if the database refused the row."""
    statement = syntax.SQL("insert into horsies.{} ({}) values ({}) returning {}").format(
        syntax.Identifier(table),
        syntax.SQL(", ").join(map(syntax.Identifier, values)),
        syntax.SQL(", ").join(syntax.SQL(value) for value in values.values()),  # pyright: ignore[reportArgumentType] - our own
        syntax.SQL(returning),  # pyright: ignore[reportArgumentType] - our own
    )
    try:
        return sql.execute(statement).fetchone()
    except psycopg.Error:
        return None
