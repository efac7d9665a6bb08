"""What our workers load. `default` is the worker as it comes, `best` has the throughput settings."""

import time

from benchmarks.peers.adapters.body import SLEEP_S, database_url, note_start, settings
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

BEST = settings() == "best"
CONFIG = AppConfig(broker=PostgresConfig(database_url=database_url()), prefetch_buffer="auto" if BEST else 0)

app = Horsies(CONFIG)


@app.task("plain")
def plain(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=note_start(n))


@app.task("sleep")
def sleep(n: int) -> TaskResult[int, TaskError]:
    note_start(n)
    time.sleep(SLEEP_S)
    return TaskResult(ok=n)
