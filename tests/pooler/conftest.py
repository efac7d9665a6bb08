"""An app that reaches its database through PgBouncer, and workers of it."""

import json
from collections.abc import Generator
from typing import Any, Protocol

import pytest

from horsies import TaskError, TaskHandle, TaskResult
from tests.apps.settings import VARIABLE
from tests.fixtures.apps import load_fresh
from tests.fixtures.workers import StartWorker, Worker
from tests.recovery.steps import CLUSTER, FORKED
from tests.worker.steps import PATIENCE_MS


class Pooled:
    """The app of `tests/apps/cluster.py` with these settings, as a producer here and in workers."""

    def __init__(self, start: StartWorker, module: Any, url: str) -> None:
        self._start = start
        self._url = url
        self.app = module.app

    def worker(self, *, processes: int = 1, options: tuple[str, ...] = FORKED) -> Worker:
        # By environment too: that is where tasks of `basic` that send find their database.
        return self._start(CLUSTER, processes=processes, options=options, database_url=self._url)

    def send(self, name: str, *args: object) -> TaskHandle[Any]:
        return self.app.tasks[name].send(*args)

    def result(self, name: str, *args: object) -> TaskResult[Any, TaskError]:
        return self.send(name, *args).get(PATIENCE_MS)


class MakePooled(Protocol):
    """`pooled(pgbouncer().url, listen_url=database, cluster_wide_cap=3)`: the rest are settings of the app."""

    def __call__(self, url: str, listen_url: str | None = None, **settings: object) -> Pooled: ...


@pytest.fixture
def pooled(worker: StartWorker, monkeypatch: pytest.MonkeyPatch) -> Generator[MakePooled]:
    made: list[Pooled] = []

    def make(url: str, listen_url: str | None = None, **settings: object) -> Pooled:
        broker = {"database_url": url, "listen_url": listen_url}
        monkeypatch.setenv(VARIABLE, json.dumps({"broker": broker, **settings}))  # workers inherit it
        made.append(Pooled(worker, load_fresh("cluster"), url))
        return made[-1]

    yield make
    for each in made:
        each.app.close()
