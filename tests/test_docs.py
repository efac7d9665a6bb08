"""The pages for users know everything that users can meet."""

import re
from enum import StrEnum
from pathlib import Path

import pytest

import horsies
from horsies.model import codes

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<cause>[^|]+) \| (?P<cure>[^|]+) \|$", re.MULTILINE)

CODES = [
    code.value
    for family in vars(codes).values()
    if isinstance(family, type) and issubclass(family, StrEnum)
    for code in family
]
EXCEPTIONS = [
    name
    for name in horsies.__all__
    if isinstance(value := getattr(horsies, name), type) and issubclass(value, BaseException)
]


def rows() -> dict[str, re.Match[str]]:
    return {row["name"]: row for row in ROW.finditer((DOCS / "errors.md").read_text())}


@pytest.mark.parametrize("name", [*CODES, *EXCEPTIONS])
def test_every_error_code_and_every_exception_has_its_cause_and_its_cure(name: str) -> None:
    row = rows()[name]
    assert row["cause"].strip()
    assert row["cure"].strip()


def test_no_error_is_explained_that_does_not_exist() -> None:
    assert rows().keys() == {*CODES, *EXCEPTIONS}


def test_every_family_of_codes_has_its_table() -> None:
    text = (DOCS / "errors.md").read_text()
    families = [name for name, value in vars(codes).items() if isinstance(value, type) and value is not StrEnum]
    assert all(f"### `{family}`" in text for family in families)


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), DOCS.parent / "README.md"], ids=lambda page: page.name)
def test_every_link_to_a_page_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
