"""The app of these tests, as a producer."""

from collections.abc import Generator
from typing import Any

import pytest

from tests.fixtures.apps import load_fresh


@pytest.fixture
def graphs(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("graphs")
    yield module
    module.app.close()
