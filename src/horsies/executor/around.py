"""Run the middleware of the app around the call of a task.

There is one source for both kinds of tasks: `Surrounded.call` is a coroutine. Around a `def` task all middleware is synchronous, so the coroutine
never suspends and `call_now` runs it to its end in one step, on whichever thread the task runs.

Middleware observes. What the task returned or raised remains its outcome, unless a middleware raises something itself: its exception then is
the outcome, as if the task had raised it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from horsies.executor.os_process import exit_if_copy
from horsies.model.result import Err, TaskError, TaskResult
from horsies.tasks.current_task import CurrentTask
from horsies.tasks.middleware import Middleware
from horsies.tasks.task import BaseTask, encode_result


class Surrounded:
    """One call of a task, inside its middleware; the first one that was defined is the outermost."""

    def __init__(
        self,
        middlewares: Sequence[Middleware],
        current: CurrentTask,
        task: BaseTask[..., Any],
        function: Callable[[], Any],
    ) -> None:
        self._middlewares = middlewares
        self._current = current
        self._task = task
        self._function = function
        self._result: TaskResult[Any, TaskError] | None = None
        self.encoded: str | TaskError | None = None
        """The value of the result as JSON, or the error, when the function has returned. Encoded before the middleware ends, because
        middleware is to see the outcome that is stored."""
        self.failed_middleware: str | None = None

    async def call(self) -> Any:
        return await self._call_within(0)

    def call_now(self) -> Any:
        coroutine = self._call_within(0)
        try:
            coroutine.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the middleware of a def task was suspended")

    async def _call_within(self, position: int) -> Any:
        if position == len(self._middlewares):
            return await self._call_function()
        steps = _Steps(self._middlewares[position], self._current, self)
        try:
            await steps.start()
            returned = await self._call_within(position + 1)
        except BaseException as error:
            trace = error.__traceback__
            await steps.throw(error)
            error.__traceback__ = trace  # without the frames of the middleware that it has passed
            raise
        await steps.finish(self._result)
        return returned

    async def _call_function(self) -> Any:
        try:
            returned = self._function()
            if self._task.is_async:
                returned = await returned
        except BaseException as error:
            # Otherwise a forked copy would run the end of the middleware, and commit on a connection of this process.
            exit_if_copy(error)
            raise
        exit_if_copy(None)
        self.encoded = encode_result(self._task, returned)
        self._result = Err(self.encoded) if isinstance(self.encoded, TaskError) else returned
        return returned


class _Steps:
    """The steps of one middleware: to its `yield`, and from there to its end. An exception of its own is attributed to it."""

    def __init__(self, middleware: Middleware, current: CurrentTask, call: Surrounded) -> None:
        self._middleware = middleware
        self._call = call
        self._generator = middleware.function(current)
        self._is_suspended = False

    async def start(self) -> None:
        try:
            if self._middleware.is_async:
                await anext(self._generator)
            else:
                next(self._generator)
        except (StopIteration, StopAsyncIteration):
            self._call.failed_middleware = self._middleware.name
            raise RuntimeError("it ended without a yield; every path through it must reach the yield") from None
        except BaseException:
            self._call.failed_middleware = self._middleware.name
            raise
        self._is_suspended = True

    async def finish(self, result: TaskResult[Any, TaskError] | None) -> None:
        try:
            if self._middleware.is_async:
                await self._generator.asend(result)
            else:
                self._generator.send(result)
        except (StopIteration, StopAsyncIteration):
            return
        except BaseException:
            self._call.failed_middleware = self._middleware.name
            raise
        await self._refuse_second_yield()

    async def throw(self, error: BaseException) -> None:
        """Raise the outcome at the yield. It is still the outcome if the middleware catches it."""
        if not self._is_suspended:
            return
        try:
            if self._middleware.is_async:
                await self._generator.athrow(error)
            else:
                self._generator.throw(error)
        except (StopIteration, StopAsyncIteration):
            return
        except BaseException as raised:
            # A generator turns a StopIteration that passes through it into a RuntimeError. Any other one is the middleware's own.
            is_stop = isinstance(error, StopIteration | StopAsyncIteration)
            if raised is error or (is_stop and isinstance(raised, RuntimeError) and raised.__cause__ is error):
                return
            self._call.failed_middleware = self._middleware.name
            raise
        await self._refuse_second_yield()

    async def _refuse_second_yield(self) -> None:
        self._call.failed_middleware = self._middleware.name
        with suppress(RuntimeError):  # it yields even while it is closed
            if self._middleware.is_async:
                await self._generator.aclose()
            else:
                self._generator.close()
        raise RuntimeError("it yielded a second time; a middleware has one yield, around which the task runs")
