"""The test house: every fixture lives in a plug-in of its own under `tests/fixtures`."""

pytest_plugins = [
    "tests.fixtures.server",
    "tests.fixtures.databases",
    "tests.fixtures.roles",
    "tests.fixtures.brokers",
    "tests.fixtures.apps",
    "tests.fixtures.shops",
    "tests.fixtures.workers",
    "tests.fixtures.proxies",
    "tests.fixtures.planting",
    "tests.fixtures.callers",
    "tests.fixtures.leaks",
]
