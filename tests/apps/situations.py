"""An app whose tasks go wrong in the ways that an operator has to find; see `tests/fixtures/situations.py`. Its database is $HORSIES_DATABASE_URL."""

import os
import signal
import time
from pathlib import Path

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    QueueMode,
    RecoveryConfig,
    RetryPolicy,
    TaskError,
    TaskResult,
)

LATER = RetryPolicy.fixed([0.01, 3_600], auto_retry_for=["WORKER_CRASHED"])
QUEUES = ("mail", "reports", "imports", "exports", "payments", "invoices")

app = Horsies(
    AppConfig(
        name="situations",
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name=name) for name in QUEUES],
        recovery=RecoveryConfig(heartbeat_ms=200, dead_after_ms=1_500, maintenance_ms=100),
    )
)


@app.task("send_mail", queue_name="mail")
def send_mail(address: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=address)


@app.task("make_report", queue_name="reports")
def make_report(until: str) -> TaskResult[None, TaskError]:
    """Run until the file exists: usually it does."""
    while not Path(until).exists():
        time.sleep(0.02)
    return TaskResult(ok=None)


@app.task("import_feed", queue_name="imports", timeout_ms=4 * 3_600_000)
def import_feed(until: str) -> TaskResult[None, TaskError]:
    """Run for long, as may be expected."""
    return make_report.function(until)


@app.task("export_orders", queue_name="exports")
def export_orders(until: str) -> TaskResult[None, TaskError]:
    return make_report.function(until)


@app.task("send_invoice", queue_name="invoices")
def send_invoice(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number)


@app.task("parse_upload", queue_name="mail", retry_policy=LATER)
def parse_upload(path: str) -> TaskResult[int, TaskError]:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return TaskResult(ok=len(path))


@app.task("count_stock", queue_name="payments")
def count_stock() -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="STOCK_AWAY", message="the stock service does not answer"))


@app.task("charge", queue_name="payments")
def charge(order: int) -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="CARD_REFUSED", message=f"the card of order {order} was refused"))


@app.task("ship", queue_name="payments")
def ship(order: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=order)


paid = charge.node(node_id="pay")(112)
shipped = ship.node(node_id="ship", waits_for=[paid])(112)
order = app.workflow("order", [paid, shipped], on_error="pause")
