"""A small shop in a sandbox, on the test's own database."""

from collections.abc import Generator

import pytest

from horsies.testing import Sandbox, open_sandbox
from tests.testing import shop


@pytest.fixture
def sandbox(database: str) -> Generator[Sandbox]:
    shop.log.clear()
    with open_sandbox(shop.app, database) as opened:
        yield opened
