"""Ask suppliers for their prices, choose the lowest, and announce it."""

import os
from datetime import UTC, datetime, timedelta

import httpx
from pydantic import BaseModel

from examples.celery_port.after.app import app
from horsies import RetryPolicy, TaskError, TaskResult, WorkflowHandle, from_node

SUPPLIERS_URL = os.environ.get("SUPPLIERS_URL", "http://localhost:8001")
SUPPLIERS = ["north", "south", "west"]
PRODUCTS = ["saddle", "bridle"]
RETRIED = ["SUPPLIER_DOWN", "TASK_TIMEOUT", "WORKER_CRASHED"]


class Offer(BaseModel):
    supplier: str
    cents: int


@app.task("shop.ask_price", timeout_ms=30_000, retry_policy=RetryPolicy.exponential(1, 2, RETRIED))
def ask_price(supplier: str, product: str) -> TaskResult[Offer, TaskError]:
    answer = httpx.get(f"{SUPPLIERS_URL}/{supplier}/{product}").raise_for_status()
    return TaskResult(ok=Offer(supplier=supplier, cents=answer.json()["cents"]))


@app.task("shop.choose", timeout_ms=30_000, retry_policy=RetryPolicy.exponential(1, 2, ["WORKER_CRASHED"]))
def choose(offers: list[Offer], product: str) -> TaskResult[Offer, TaskError]:
    best = min(offers, key=lambda offer: offer.cents)
    announce.with_options(good_until=datetime.now(UTC) + timedelta(hours=1)).send(product, best)
    return TaskResult(ok=best)


@app.task("shop.announce", timeout_ms=30_000, retry_policy=RetryPolicy.exponential(1, 5, RETRIED))
def announce(product: str, offer: Offer) -> TaskResult[None, TaskError]:
    body = {"product": product, **offer.model_dump()}
    httpx.post(f"{SUPPLIERS_URL}/announce", json=body).raise_for_status()
    return TaskResult(ok=None)


@app.task("shop.compare_all", timeout_ms=30_000)
def compare_all() -> TaskResult[None, TaskError]:
    for product in PRODUCTS:
        compare(product)
    return TaskResult(ok=None)


def compare(product: str) -> WorkflowHandle[Offer]:
    """Ask all suppliers at once, and choose when all have answered."""
    offers = [ask_price.node()(supplier, product) for supplier in SUPPLIERS]
    best = choose.node()([from_node(offer) for offer in offers], product)
    return app.workflow("compare", [*offers, best], output=best).start()
