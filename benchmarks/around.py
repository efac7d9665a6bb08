"""`make bench-around`: what middleware, `on_failure` and kept log lines cost.

A worker with `prefetch_buffer="auto"` and without recycling drains tasks that do nothing. Each kind of task is drained in turn with its counterpart,
which lacks only what is measured. The rate is that of all tasks that end, by the database. There are no bars; exit code 1 if a result was wrong.
"""

import argparse
import logging
import os
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from statistics import median

from benchmarks.drain import seconds, wait_until_empty
from benchmarks.place import Place, open_place
from benchmarks.tasks import DATABASE_URL
from benchmarks.terminal import INTERRUPTED, end_like_ctrl_c, show_progress
from benchmarks.worker import NO_RECYCLING, running_worker
from horsies import AppConfig, CurrentTask, Horsies, PostgresConfig, TaskError, TaskFailure, TaskResult

COUNT, QUICK_COUNT = 60_000, 3_000
MIDDLEWARE = "BENCH_MIDDLEWARE"
log = logging.getLogger("benchmark")


def make_app(database_url: str, middlewares: int) -> Horsies:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url), prefetch_buffer="auto"))

    def nothing(task: CurrentTask) -> Generator[None]:  # noqa: ARG001 - middleware has it
        yield

    for _ in range(middlewares):
        app.middleware(nothing)
    _add_tasks(app)
    _add_failing_tasks(app)
    return app


def _add_tasks(app: Horsies) -> None:
    @app.task("done")
    def done(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    @app.task("log_a_line")
    def log_a_line(n: int) -> TaskResult[int, TaskError]:
        log.info("task %s", n)
        return TaskResult(ok=n)

    @app.task("keep_a_line", keep_logs=True)
    def keep_a_line(n: int) -> TaskResult[int, TaskError]:
        log.info("task %s", n)
        return TaskResult(ok=n)


def _add_failing_tasks(app: Horsies) -> None:
    @app.task("compensate")
    def compensate(failure: TaskFailure) -> TaskResult[None, TaskError]:  # noqa: ARG001 - it is given
        return TaskResult(ok=None)

    @app.task("done_or_compensated", on_failure=compensate)
    def done_or_compensated(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    @app.task("fail")
    def fail(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError(error_code="FAILED_AS_MEANT", message=str(n)))

    @app.task("fail_and_compensate", on_failure=compensate)
    def fail_and_compensate(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError(error_code="FAILED_AS_MEANT", message=str(n)))


app = make_app(os.environ.get(DATABASE_URL, "postgresql://localhost"), int(os.environ.get(MIDDLEWARE, "0")))


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    task: str
    without: str
    """The name of the task that it is compared with."""
    middlewares: int = 0
    ends: int = 1
    """How many tasks end for each that is sent."""
    rates: list[float] = field(default_factory=list[float])
    rates_without: list[float] = field(default_factory=list[float])


CASES = (
    Case("the same code twice", "done", "done"),
    Case("one middleware", "done", "done", middlewares=1),
    Case("five middlewares", "done", "done", middlewares=5),
    Case("on_failure, and no task fails", "done_or_compensated", "done"),
    Case("on_failure, and every task fails", "fail_and_compensate", "fail", ends=2),
    Case("keep_logs, one line for each task", "keep_a_line", "log_a_line"),
)


def main() -> int:
    end_like_ctrl_c()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.around", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the tasks, one round")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind (default: 3)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    rounds, count = (1, QUICK_COUNT) if options.quick else (options.rounds, COUNT)
    try:
        with open_place() as place:
            for number in range(rounds):
                for case in CASES:
                    show_progress(f"round {number + 1}/{rounds}: {case.name}")
                    for is_with in (False, True) if number % 2 == 0 else (True, False):
                        _drain(place, case, count, is_with=is_with)
    except KeyboardInterrupt:
        show_progress("interrupted; the worker and the server are stopped")
        return INTERRUPTED
    print(f"{'':<36}{'with':>10}{'without':>10}{'ratio':>8}")
    for case in CASES:
        rate, rate_without = median(case.rates), median(case.rates_without)
        print(f"{case.name:<36}{rate:>10,.0f}{rate_without:>10,.0f}{rate / rate_without:>8.2f}")
    return 0


def _drain(place: Place, case: Case, count: int, *, is_with: bool) -> None:
    place.clear("horsies")
    sender = make_app(place.url, 0)
    try:
        task = sender.tasks[case.task if is_with else case.without]
        task.send_many([task.call(number) for number in range(count)])
    finally:
        sender.close()
    os.environ[MIDDLEWARE] = str(case.middlewares if is_with else 0)
    with running_worker(place, "auto", *NO_RECYCLING, app="benchmarks.around:app") as worker:
        wait_until_empty(place, worker)
    wanted = count * (case.ends if is_with else 1)
    ended = (place.admin.execute("select count(*) from horsies.finished").fetchone() or (0,))[0]
    if ended != wanted:
        raise RuntimeError(f"{case.name}: {ended} tasks have ended, not {wanted}")
    (case.rates if is_with else case.rates_without).append(wanted / seconds(place))


if __name__ == "__main__":
    sys.exit(main())
