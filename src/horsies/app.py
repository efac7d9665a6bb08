"""`Horsies`: an app, with the methods to define, wait for and operate its tasks."""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, TypeVar, overload
from uuid import UUID

from horsies.db.broker import PostgresBroker
from horsies.model.app_check import AppCheck
from horsies.model.codec import ResultCodec
from horsies.model.config import AppConfig, PostgresConfig
from horsies.model.other_queues import APP_OPTIONS, explain_options
from horsies.model.result import Result
from horsies.model.validation import instance_problems, raise_problems
from horsies.model.worker_config import WorkerConfig
from horsies.ops.api import Ops
from horsies.registry import Registry
from horsies.tasks.handle import Gathering, TaskHandle, refuse_in_event_loop
from horsies.tasks.ids import to_task_id, to_workflow_id
from horsies.tasks.inspect import WorkerState, get_worker_states
from horsies.tasks.queues import pause_queue, resume_queue
from horsies.tasks.task import BaseTask
from horsies.worker_thread import Worker
from horsies.workflows.definition import WorkflowSpec
from horsies.workflows.handle import WorkflowHandle

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")


class Horsies(Registry):
    """An app. Without a database in its configuration it uses $HORSIES_DATABASE_URL, $DATABASE_URL, or the
    embedded PostgreSQL of this project, in this order, when it first needs a database.
    """

    @explain_options("Horsies()", APP_OPTIONS, TypeError)
    def __init__(self, config: AppConfig | None = None) -> None:
        if config is not None:
            raise_problems("Horsies", instance_problems("config", config, AppConfig, "AppConfig.for_database_url(...)"))
        super().__init__(config or AppConfig())
        self._broker: PostgresBroker | None = None

    # -- the database

    @property
    def broker(self) -> PostgresBroker:
        """Return the connection to the database, created at first use."""
        if self._broker is None:
            database = configured = self._configured_database()
            if database is None:
                # It needs modules of Linux and macOS, and only an app without a database uses it.
                from horsies.embedded.project import embedded_database_url  # noqa: PLC0415 - see above

                database = PostgresConfig(database_url=embedded_database_url())
            broker = PostgresBroker(database, resilience=self.config.resilience)
            if configured is None:
                broker.ensure_schema_initialized()  # this database is ours alone, and no deployment migrates it
            self._broker = broker
        return self._broker

    def use_database(self, database_url: str) -> None:
        """Use this database from now on, instead of the configured one; all other settings stay."""
        self.close()
        former = self.config.broker or PostgresConfig(database_url=database_url)
        broker = replace(former, database_url=database_url, listen_url=None)  # the old one is of the other database
        self.config, self._broker = replace(self.config, broker=broker), None

    @contextmanager
    def using(self, broker: PostgresBroker) -> Generator[None]:
        """Use this broker and its database inside a `with` block. For tests (`horsies.testing`)."""
        former = self.config, self._broker
        self.config, self._broker = replace(self.config, broker=broker.config), broker
        try:
            yield
        finally:
            self.config, self._broker = former

    def _configured_database(self) -> PostgresConfig | None:
        url = os.environ.get("HORSIES_DATABASE_URL") or os.environ.get("DATABASE_URL")
        return self.config.broker or (PostgresConfig(database_url=url) if url else None)

    # -- waiting

    @overload
    def handle(self, task_id: str | UUID) -> TaskHandle[Any]: ...
    @overload
    def handle(self, task_id: str | UUID, task: BaseTask[..., T]) -> TaskHandle[T]: ...
    def handle(self, task_id: str | UUID, task: BaseTask[..., Any] | None = None) -> TaskHandle[Any]:
        """Return a handle for a stored id; nothing is looked up. With its task, results have the task's type; without, they are JSON values."""
        if not isinstance(task, BaseTask | None):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass its name
            raise TypeError(
                f"task is {task!r}; give the decorated function, such as app.tasks[{task!r}], or leave it out"
            )
        codec = ResultCodec[Any](Any) if task is None else task.result
        return TaskHandle(to_task_id(task_id), codec, self)

    @overload
    def workflow_handle(self, workflow_id: str | UUID) -> WorkflowHandle[Any]: ...
    @overload
    def workflow_handle(self, workflow_id: str | UUID, spec: WorkflowSpec[T]) -> WorkflowHandle[T]: ...
    def workflow_handle(self, workflow_id: str | UUID, spec: WorkflowSpec[Any] | None = None) -> WorkflowHandle[Any]:
        """Return a handle for the stored id of a run; nothing is looked up. With its specification it has the type of the workflow's value."""
        if spec is not None:
            return spec.handle(workflow_id)
        return WorkflowHandle(to_workflow_id(workflow_id), self)

    # fmt: off
    @overload
    def gather(self, handles: tuple[TaskHandle[A], TaskHandle[B]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B]]: ...  # pyright: ignore[reportOverlappingOverload] - a tuple is an iterable, too, but the first that fits counts
    @overload
    def gather(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C]]: ...
    @overload
    def gather(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D]]: ...
    @overload
    def gather(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E]]: ...
    @overload
    def gather(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E], TaskHandle[F]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E], Result[F]]: ...
    @overload
    def gather(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E], TaskHandle[F], TaskHandle[G]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E], Result[F], Result[G]]: ...
    @overload
    def gather(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E], TaskHandle[F], TaskHandle[G], TaskHandle[H]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E], Result[F], Result[G], Result[H]]: ...
    @overload
    def gather(self, handles: tuple[TaskHandle[T], ...], timeout_ms: int | None = ...) -> tuple[Result[T], ...]: ...
    @overload
    def gather(self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = ...) -> list[Result[T]]: ...
    # fmt: on
    def gather(self, handles: Iterable[TaskHandle[Any]], timeout_ms: int | None = None) -> Any:
        """Wait for all of them and return the results in the order of the handles. A task that has not ended in time gives `err(WAIT_TIMEOUT)`.

        A tuple of handles gives a tuple of results, each with the type of its task; anything else gives a list.
        """
        results = self._gathering(handles, timeout_ms).all()
        return tuple(results) if isinstance(handles, tuple) else results

    # fmt: off
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[A], TaskHandle[B]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B]]: ...
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C]]: ...
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D]]: ...
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E]]: ...
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E], TaskHandle[F]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E], Result[F]]: ...
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E], TaskHandle[F], TaskHandle[G]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E], Result[F], Result[G]]: ...
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[A], TaskHandle[B], TaskHandle[C], TaskHandle[D], TaskHandle[E], TaskHandle[F], TaskHandle[G], TaskHandle[H]], timeout_ms: int | None = ...) -> tuple[Result[A], Result[B], Result[C], Result[D], Result[E], Result[F], Result[G], Result[H]]: ...
    @overload
    async def gather_async(self, handles: tuple[TaskHandle[T], ...], timeout_ms: int | None = ...) -> tuple[Result[T], ...]: ...
    @overload
    async def gather_async(self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = ...) -> list[Result[T]]: ...
    # fmt: on
    async def gather_async(self, handles: Iterable[TaskHandle[Any]], timeout_ms: int | None = None) -> Any:
        """The same for asyncio code."""
        results = await self._gathering(handles, timeout_ms).all_async()
        return tuple(results) if isinstance(handles, tuple) else results

    def as_completed(self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = None) -> Iterator[TaskHandle[T]]:
        """Yield each handle as soon as its task has ended: `get()` then returns at once. Raise `WaitTimeoutError` when the time runs out
        before all have ended.
        """
        refuse_in_event_loop("as_completed()", "async for handle in app.as_completed_async(handles)")
        return self._gathering(handles, timeout_ms).completed()

    def as_completed_async(
        self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = None
    ) -> AsyncIterator[TaskHandle[T]]:
        """The same for asyncio code."""
        return self._gathering(handles, timeout_ms).completed_async()

    def _gathering(self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None) -> Gathering[T]:
        return Gathering(handles, self, timeout_ms)

    # -- operation

    def run_worker(self, config: WorkerConfig | None = None) -> int:
        """Run a worker in this process until SIGTERM or SIGINT, and return its exit code. Must be called on the main thread."""
        config = _check_worker_config("run_worker", config)
        # By name: the worker is a layer above the app, and a producer never loads it.
        return import_module("horsies.worker.run").run_in_process(self, config)

    def run_worker_with(self, config: WorkerConfig) -> int:
        """The same as `run_worker(config)`."""
        return self.run_worker(config)

    def worker(self, config: WorkerConfig | None = None) -> Worker:
        """Create a worker that runs on a thread of this process: for tests, and for programs that do other things as well.

        `async with app.worker(WorkerConfig(processes=2)) as worker:` starts it, and stops it at the end of the block. It installs no signal
        handlers, keeps the app's connections open, and does not configure logging.
        """
        return import_module("horsies.worker.run").embedded(self, _check_worker_config("worker", config))

    def check(self, *, live: bool = False) -> AppCheck:
        """Return what `horsies check` reports: what the app consists of, and all problems with it. Its task modules are imported.

        With `live` the database and the running workers are checked too. Nothing is changed, and problems are not raised.
        """
        if live:
            refuse_in_event_loop("check(live=True)", "await app.check_async(live=True)")
        return import_module("horsies.inventory").check_app(self, live=live)

    async def check_async(self, *, live: bool = False) -> AppCheck:
        """The same for asyncio code."""
        return await to_thread(self.check, live=live)

    @property
    def ops(self) -> Ops:
        """Inspect and operate what is in the database: tasks, queues, workers, workflows, schedules, errors and statistics."""
        return Ops(self)

    def pause_queue(self, name: str) -> None:
        """Stop all workers from claiming tasks of this queue, until it is resumed. Sends are accepted."""
        self.broker.run(partial(pause_queue, self.config.queue_named(name).name))

    async def pause_queue_async(self, name: str) -> None:
        """The same for asyncio code."""
        await self.broker.run_async(partial(pause_queue, self.config.queue_named(name).name))

    def resume_queue(self, name: str) -> None:
        """Let workers claim tasks of this queue again, and notify those that wait."""
        self.broker.run(partial(resume_queue, self.config.queue_named(name).name))

    async def resume_queue_async(self, name: str) -> None:
        """The same for asyncio code."""
        await self.broker.run_async(partial(resume_queue, self.config.queue_named(name).name))

    def worker_states(self, worker_id: str | None = None) -> list[WorkerState]:
        """Return the newest health snapshot of every worker, or the history of one, newest first."""
        return self.broker.run(partial(get_worker_states, worker_id))

    async def worker_states_async(self, worker_id: str | None = None) -> list[WorkerState]:
        """The same for asyncio code."""
        return await self.broker.run_async(partial(get_worker_states, worker_id))

    @property
    def is_embedded(self) -> bool:
        """Whether this app uses the embedded PostgreSQL, because no database is configured."""
        return self._configured_database() is None

    @property
    def child_environment(self) -> Mapping[str, str]:
        """The variables that the children of a worker get, so that they use the same database."""
        # The embedded server was found by this process: children that send must not search for it on their own.
        return {"HORSIES_DATABASE_URL": self.broker.config.database_url} if self.is_embedded else {}

    def close(self) -> None:
        """Close the connections of this process. They are opened again if the app is used again."""
        if self._broker is not None:
            self._broker.close()

    async def close_async(self) -> None:
        """The same for asyncio code, including the pool of the running event loop."""
        if self._broker is not None:
            await self._broker.close_async()


def _check_worker_config(method: str, config: WorkerConfig | None) -> WorkerConfig:
    config = WorkerConfig() if config is None else config
    raise_problems(method, instance_problems("config", config, WorkerConfig, "WorkerConfig(processes=2)"))
    return config
