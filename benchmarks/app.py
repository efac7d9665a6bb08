"""What the benchmarks' workers load."""

import os

from benchmarks.tasks import DATABASE_URL, PREFETCH, QUEUES, make_app, queue_names

app, _ = make_app(
    os.environ[DATABASE_URL],
    "auto" if os.environ[PREFETCH] == "auto" else 0,
    queue_names(int(os.environ.get(QUEUES, "0"))),
)
