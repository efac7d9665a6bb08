"""What recycling costs: an app whose import takes 2 s of CPU, and tasks of 1 ms in many slots."""

from benchmarks.drain import drain, seconds, wait_until_empty
from benchmarks.measures import Measure
from benchmarks.place import Place
from benchmarks.tasks import make_app
from benchmarks.worker import NO_RECYCLING, running_worker

SLOW_APP = "benchmarks.slow_app:app"
SLOW_TASKS, SHORT_TASKS = 600, 5_000
EVERY_100 = ("--max-tasks-per-child", "100")
FORK = (*EVERY_100, "--start-method", "fork")
SHORT_S, SLOTS = 0.001, ("--concurrency", "32")


def run_recycling(place: Place) -> tuple[dict[Measure, float], list[str]]:
    ways = {Measure.SLOW_STEADY: NO_RECYCLING, Measure.SLOW_FORK: FORK, Measure.SLOW_DEFAULT: EVERY_100}
    runs = {measure: drain(place, 0, SLOW_TASKS, *options, app=SLOW_APP) for measure, options in ways.items()}
    numbers = {measure: SLOW_TASKS / run.done_per_s for measure, run in runs.items()}
    return numbers | {Measure.SHORT: _short(place)}, [problem for run in runs.values() for problem in run.problems]


def _short(place: Place) -> float:
    place.clear("horsies")
    app, _ = make_app(place.url, 0)
    task = app.tasks["stay"]
    task.send_many([task.call(number, SHORT_S) for number in range(SHORT_TASKS)])
    app.close()
    with running_worker(place, 0, *SLOTS) as worker:
        wait_until_empty(place, worker)
    return SHORT_TASKS / seconds(place)
