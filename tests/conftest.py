"""Fixtures for all tests: each is in its own plug-in under `tests/fixtures`."""

import signal

from hypothesis import settings

# A shell ignores SIGINT in what it runs in the background, and `nohup` ignores SIGHUP. So would programs that tests start, until some test sets a handler.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# No deadline per example: a busy machine is not a failure, and a test that hangs has its timeout.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

pytest_plugins = [
    "pytester",
    "tests.fixtures.server",
    "tests.fixtures.databases",
    "tests.fixtures.roles",
    "tests.fixtures.brokers",
    "tests.fixtures.apps",
    "tests.fixtures.shops",
    "tests.fixtures.processes",
    "tests.fixtures.workers",
    "tests.fixtures.situations",
    "tests.fixtures.everything",
    "tests.fixtures.browsers",
    "tests.fixtures.proxies",
    "tests.fixtures.pgbouncer",
    "tests.fixtures.faults",
    "tests.fixtures.callers",
    "tests.fixtures.hostile_sessions",
    "tests.fixtures.leaks",
]
