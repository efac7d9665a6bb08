"""Fixtures with the apps of these tests as producers."""

from collections.abc import Generator
from typing import Any

import pytest

from tests.fixtures.apps import load_fresh


@pytest.fixture
def stubborn(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("stubborn")
    yield module
    module.app.close()
