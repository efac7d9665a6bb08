"""What the benchmarks' workers load."""

import os

from benchmarks.tasks import DATABASE_URL, PREFETCH, make_app

app, _ = make_app(os.environ[DATABASE_URL], "auto" if os.environ[PREFETCH] == "auto" else 0)
