"""The Celery version of examples/celery_port in one process: its API, and a worker on threads, with Celery's broker in memory.

It prints its port. POST /schedule sends the task of the schedule, as beat would.
"""

import socket
from importlib import import_module
from typing import Any

import uvicorn
from fastapi import FastAPI


def main() -> None:
    start_worker: Any = import_module("celery.contrib.testing.worker").start_worker
    api: FastAPI = import_module("examples.celery_port.before.api").api
    app: Any = import_module("examples.celery_port.before.app").app
    app.conf.update(broker_url="memory://", result_backend="cache+memory://")

    def run_schedule() -> None:
        app.tasks[app.conf.beat_schedule["compare-all"]["task"]].delay()

    api.add_api_route("/schedule", run_schedule, methods=["POST"])
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        start_worker(app, pool="threads", concurrency=4, perform_ping_check=False),
    ):
        print(listening.getsockname()[1], flush=True)  # noqa: T201 - for the test
        uvicorn.Server(uvicorn.Config(api, log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
