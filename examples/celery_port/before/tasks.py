"""Ask suppliers for their prices, choose the lowest, and announce it."""

import os

import httpx
from celery import chord

from examples.celery_port.before.app import app

SUPPLIERS_URL = os.environ.get("SUPPLIERS_URL", "http://localhost:8001")
SUPPLIERS = ["north", "south", "west"]
PRODUCTS = ["saddle", "bridle"]


@app.task(name="shop.ask_price", bind=True, max_retries=2)
def ask_price(self, supplier, product):
    try:
        answer = httpx.get(f"{SUPPLIERS_URL}/{supplier}/{product}").raise_for_status()
    except httpx.HTTPError as error:
        raise self.retry(exc=error, countdown=2**self.request.retries) from error
    return {"supplier": supplier, "cents": answer.json()["cents"]}


@app.task(name="shop.choose")
def choose(offers, product):
    best = min(offers, key=lambda offer: offer["cents"])
    announce.apply_async(args=[product, best], expires=3600)
    return best


@app.task(name="shop.announce", autoretry_for=(httpx.HTTPError,), retry_backoff=True, max_retries=5, ignore_result=True)
def announce(product, offer):
    httpx.post(f"{SUPPLIERS_URL}/announce", json={"product": product, **offer}).raise_for_status()


@app.task(name="shop.compare_all", ignore_result=True)
def compare_all():
    for product in PRODUCTS:
        compare(product)


def compare(product):
    """Ask all suppliers at once, and choose when all have answered."""
    return chord([ask_price.s(supplier, product) for supplier in SUPPLIERS])(choose.s(product))
