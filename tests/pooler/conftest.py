"""An app that reaches its database through PgBouncer, and workers of it."""

import json
from collections.abc import Generator
from typing import Any, Protocol

import pytest

from tests.apps.settings import VARIABLE
from tests.fixtures.apps import load_fresh
from tests.fixtures.workers import StartWorker, Worker
from tests.recovery.steps import CLUSTER, FORKED


class Pooled:
    """The app of `tests/apps/cluster.py` with these settings, as a producer here and in workers."""

    def __init__(self, start: StartWorker, producer: Any) -> None:
        self._start = start
        self.producer = producer

    def worker(self, *, processes: int = 1, options: tuple[str, ...] = FORKED, until_ready: bool = True) -> Worker:
        return self._start(CLUSTER, processes=processes, options=options, until_ready=until_ready)


class MakePooled(Protocol):
    """`pooled(pgbouncer().url, listen_url=database, cluster_wide_cap=3)`: the rest are settings of the app."""

    def __call__(self, url: str, listen_url: str | None = None, **settings: object) -> Pooled: ...


@pytest.fixture
def pooled(worker: StartWorker, monkeypatch: pytest.MonkeyPatch) -> Generator[MakePooled]:
    made: list[Pooled] = []

    def make(url: str, listen_url: str | None = None, **settings: object) -> Pooled:
        broker = {"database_url": url, "listen_url": listen_url}
        monkeypatch.setenv(VARIABLE, json.dumps({"broker": broker, **settings}))  # workers inherit it
        made.append(Pooled(worker, load_fresh("cluster")))
        return made[-1]

    yield make
    for each in made:
        each.producer.app.close()
