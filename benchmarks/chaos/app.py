"""The app that the workers of a chaos run load."""

import os

from benchmarks.chaos.shop import DATABASE_URL, DEAD_AFTER_MS, PREFETCH, make_shop

prefetch = os.environ.get(PREFETCH, "0")
app = make_shop(
    os.environ[DATABASE_URL],
    dead_after_ms=int(os.environ[DEAD_AFTER_MS]),
    prefetch="auto" if prefetch == "auto" else int(prefetch),
).app
