"""The test house: every fixture lives in a plug-in of its own under `tests/fixtures`."""

from hypothesis import settings

# A busy machine is no failure, and a test that hangs has its time-out.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

pytest_plugins = [
    "pytester",
    "tests.fixtures.server",
    "tests.fixtures.databases",
    "tests.fixtures.roles",
    "tests.fixtures.brokers",
    "tests.fixtures.apps",
    "tests.fixtures.shops",
    "tests.fixtures.workers",
    "tests.fixtures.proxies",
    "tests.fixtures.pgbouncer",
    "tests.fixtures.faults",
    "tests.fixtures.callers",
    "tests.fixtures.hostile_sessions",
    "tests.fixtures.leaks",
]
