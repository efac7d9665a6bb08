"""A shop with tasks, schedules and workflows of every kind, for `tests/fixtures/everything.py`. Its database is $HORSIES_DATABASE_URL."""

import logging
import os
import signal
import time
from datetime import time as time_of_day
from typing import Any

from horsies import (
    AppConfig,
    CustomQueueConfig,
    DailySchedule,
    Horsies,
    IntervalSchedule,
    QueueMode,
    RecoveryConfig,
    RetryPolicy,
    ScheduleConfig,
    SubWorkflowNode,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkflowSpec,
    current_task,
    each,
    result_from,
)

log = logging.getLogger("shop")

app = Horsies(
    AppConfig(
        name="shop",
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig(name="payments", priority=10),
            CustomQueueConfig(name="mail"),
            CustomQueueConfig(name="media", priority=200, max_concurrency=20),
            CustomQueueConfig(name="reports", priority=300),
            CustomQueueConfig(name="imports"),
            CustomQueueConfig(name="doomed"),
        ],
        recovery=RecoveryConfig(heartbeat_ms=200, dead_after_ms=1_500, maintenance_ms=100, snapshot_ms=1_000),
        schedule=ScheduleConfig(
            schedules=[
                TaskSchedule(name="nightly report", task_name="report", pattern=DailySchedule(time_of_day(3))),
                TaskSchedule(
                    name="sync stock", task_name="sync_stock", pattern=IntervalSchedule(hours=1), kwargs={"shop": 4}
                ),
                TaskSchedule(
                    name="newsletter",
                    task_name="send_mail",
                    pattern=IntervalSchedule(days=7),
                    kwargs={"address": "all"},
                ),
            ]
        ),
    )
)

SOON = RetryPolicy.fixed([0.01] * 8 + [3_600], auto_retry_for=["BANK_AWAY", "WORKER_CRASHED"])
LATER = RetryPolicy.fixed([3_600] * 3, auto_retry_for=["BANK_AWAY", "WORKER_CRASHED"])


@app.task("charge", queue_name="payments", retry_policy=LATER)
def charge(order: int, *, fails: bool = False) -> TaskResult[str, TaskError]:
    if fails:
        return TaskResult(
            err=TaskError(error_code="BANK_AWAY", message="the bank does not answer", data={"order": order})
        )
    return TaskResult(ok=f"receipt {order}")


@app.task("refund", queue_name="payments", retry_policy=SOON)
def refund(order: int) -> TaskResult[None, TaskError]:
    """Fail until few attempts are left."""
    return TaskResult(err=TaskError(error_code="BANK_AWAY", message=f"no answer about order {order}\nsecond line"))


@app.task("send_mail", queue_name="mail")
def send_mail(address: str, subject: str = "") -> TaskResult[None, TaskError]:
    if "@" not in address:
        raise ValueError(f"{address!r} is not an address")
    return TaskResult(ok=None)


@app.task("deliver", queue_name="mail")
def deliver(number: int) -> TaskResult[None, TaskError]:
    message = f"mail {number} was refused by host-{number}.example: 550 mailbox 0x{number:08x} is full"
    return TaskResult(err=TaskError(error_code="REFUSED", message=message))


@app.task("parse_upload", queue_name="imports")
def parse_upload(path: str) -> TaskResult[int, TaskError]:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=len(path))


@app.task(
    "parse_again",
    queue_name="imports",
    retry_policy=RetryPolicy.fixed([0.01, 3_600], auto_retry_for=["WORKER_CRASHED"]),
)
def parse_again(path: str) -> TaskResult[int, TaskError]:
    """Kill the process that runs it, in each attempt."""
    return parse_upload.function(path)


@app.task("fetch_feed", queue_name="imports", timeout_ms=100)
def fetch_feed(url: str) -> TaskResult[str, TaskError]:
    time.sleep(600)
    return TaskResult(ok=url)


@app.task("render_video", queue_name="media")
def render_video(video: int) -> TaskResult[str, TaskError]:
    """Run for long, and say how far it is."""
    log.info("rendering video %d", video)
    current_task().progress(0.42, f"frame 1260 of 3000 of video {video}")
    time.sleep(600)
    return TaskResult(ok=f"{video}.mp4")


@app.task("doomed", queue_name="doomed")
def doomed(number: int) -> TaskResult[int, TaskError]:
    """Run until its worker is killed."""
    time.sleep(600)
    return TaskResult(ok=number)


@app.task("doomed_twice", queue_name="doomed", retry_policy=LATER)
def doomed_twice(number: int) -> TaskResult[int, TaskError]:
    return doomed.function(number)


@app.task("report", queue_name="reports")
def report(day: str = "yesterday") -> TaskResult[dict[str, Any], TaskError]:
    return TaskResult(ok={"day": day, "orders": 112, "refunds": [3, 5, 8]})


@app.task("sync_stock", queue_name="imports")
def sync_stock(shop: int) -> TaskResult[None, TaskError]:
    raise ConnectionResetError(f"shop {shop} closed the connection")


@app.task("echo", queue_name="imports")
def echo(value: Any = None) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=value)


# -- for workflows


@app.task("up_to", queue_name="imports")
def up_to(count: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(count)))


@app.task("step", queue_name="imports")
def step(name: str = "", *, fails: bool = False) -> TaskResult[str, TaskError]:
    if fails:
        return TaskResult(err=TaskError(error_code="STEP_FAILED", message=f"step {name} has failed"))
    return TaskResult(ok=name)


@app.task("double", queue_name="imports")
def double(number: int) -> TaskResult[int, TaskError]:
    if number % 7 == 3:
        return TaskResult(err=TaskError(error_code="UNLUCKY", message=f"{number} is not doubled"))
    return TaskResult(ok=number * 2)


@app.task("collect", queue_name="imports")
def collect(results: list[TaskResult[str, TaskError]]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(result.is_ok() for result in results))


@app.task("hold", queue_name="media")
def hold() -> TaskResult[str, TaskError]:
    time.sleep(600)
    return TaskResult(ok="")


order_paid = step.node(node_id="paid")("paid")
order_packed = step.node(node_id="packed", waits_for=[order_paid])("packed")
order_sent = step.node(node_id="sent", waits_for=[order_packed])("sent")
order = app.workflow("order", [order_paid, order_packed, order_sent], output=order_sent, definition_key="order.v2")

broken_first = step.node(node_id="fetch")("fetch")
broken_bad = step.node(node_id="parse", waits_for=[broken_first])("parse", fails=True)
broken_after = [step.node(node_id=f"store {number}", waits_for=[broken_bad])("store") for number in range(3)]
broken_report = collect.node(node_id="report", allow_failed_deps=True)([result_from(node) for node in broken_after])
broken = app.workflow("import catalog", [broken_first, broken_bad, *broken_after, broken_report], output=broken_report)

careful_bad = step.node(node_id="check")("check", fails=True)
careful_rest = [step.node(node_id=f"part {number}", waits_for=[careful_bad])("part") for number in range(3)]
careful = app.workflow("migrate customers", [careful_bad, *careful_rest], on_error="pause")

held = hold.node(node_id="held")()
after_held = step.node(node_id="after", waits_for=[held])("after")
holding = app.workflow("publish", [held, after_held], output=after_held)

numbers = up_to.node(node_id="numbers")(40)
doubled = double.map_node(node_id="doubled", max_failures=40)(each(numbers))
mapped_end = step.node(node_id="end", waits_for=[doubled])("end")
mapped = app.workflow("double all", [numbers, doubled, mapped_end], output=mapped_end)

nested_first = step.node(node_id="first")("first")
nested_order = SubWorkflowNode(order, node_id="order", waits_for=[nested_first])
nested_last = step.node(node_id="last", waits_for=[nested_order])("last")
nested = app.workflow("whole day", [nested_first, nested_order, nested_last], output=nested_last)


def layered(name: str, layers: int, width: int) -> WorkflowSpec[Any]:
    """A workflow of `layers` times `width` nodes, each of which waits for two of the layer above. In it one node fails, and one runs for long."""
    rows: list[list[Any]] = []
    for layer in range(layers):
        made: list[Any] = []
        for place in range(width):
            above = [rows[-1][place], rows[-1][(place + 1) % width]] if rows else []
            node_id = f"{layer}.{place}"
            if (layer, place) == (layers // 2, 0):
                made.append(hold.node(node_id=node_id, waits_for=above)())
            else:
                fails = (layer, place) == (layers // 2, width // 2)
                made.append(step.node(node_id=node_id, waits_for=above)(node_id, fails=fails))
        rows.append(made)
    return app.workflow(name, [node for row in rows for node in row])
