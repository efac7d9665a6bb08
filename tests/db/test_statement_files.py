from pathlib import Path

import pytest

from horsies.db.statement import load


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    return tmp_path / "verb.sql"


def load_twin(twin: Path) -> dict[str, str]:
    return {name: found.text for name, found in load(str(twin.with_suffix(".py"))).items()}


def test_each_named_block_is_a_statement(twin: Path) -> None:
    twin.write_text("-- About the file.\n\n-- name: first\nselect 1;\n\n-- name: second\nselect\n    2;\n")
    assert load_twin(twin) == {"first": "select 1;", "second": "select\n    2;"}


def test_comments_are_not_sent_to_the_server(twin: Path) -> None:
    twin.write_text("-- name: first\n-- Why.\nselect 1 -- one\nfrom t;\n")
    assert load_twin(twin) == {"first": "select 1\nfrom t;"}


def test_sql_that_belongs_to_no_name_is_refused(twin: Path) -> None:
    twin.write_text("select 0;\n-- name: first\nselect 1;\n")
    with pytest.raises(ValueError, match=r"verb.sql: SQL before the first '-- name:' line"):
        load_twin(twin)


def test_a_name_that_is_used_twice_is_refused(twin: Path) -> None:
    twin.write_text("-- name: first\nselect 1;\n-- name: first\nselect 2;\n")
    with pytest.raises(ValueError, match=r"verb.sql: a name is used twice"):
        load_twin(twin)
