"""docs/pooler.md, with a real PgBouncer: its configuration files and its apps."""

import os
import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.fixtures.pgbouncer import PgBouncer, StartPgBouncer
from tests.fixtures.processes import run_module
from tests.fixtures.workers import READY, Program

PAGE = (Path(__file__).parents[2] / "docs" / "pooler.md").read_text()
POOLED = "postgresql://app@pgbouncer:6432/shop"
DIRECT = "postgresql://app@db:5432/shop"
LOCAL = {"listen_addr": "", "auth_type": "any", "auth_file": ""}
"""What the page says about networks and passwords cannot be true of a test."""
TASK = """
from horsies import TaskError, TaskResult

@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def pooler(pgbouncer: StartPgBouncer) -> PgBouncer:
    """With the settings of the page."""
    (text,) = blocks("ini")
    ini = ConfigParser()
    ini.read_string(text)
    (name,) = ini["databases"]
    assert (name, ini["databases"][name]) == ("shop", "host=db port=5432 dbname=shop")  # as in the URLs
    assert {*LOCAL} <= {*ini["pgbouncer"]}
    return pgbouncer(**{**ini["pgbouncer"], **LOCAL})


@pytest.mark.parametrize("listens", [True, False], ids=["with listen_url", "without"])
def test_the_app_of_the_page_works_behind_the_pooler_of_the_page(
    pooler: PgBouncer, database: str, tmp_path: Path, *, listens: bool
) -> None:
    with_listen_url, without = blocks("python")
    text = with_listen_url if listens else without
    assert (POOLED in text, DIRECT in text) == (True, listens)
    (tmp_path / "shop.py").write_text(text.replace(POOLED, pooler.url).replace(DIRECT, database) + TASK)
    (tmp_path / "send.py").write_text("from shop import add; print(add.send(1, 2).get(20_000).unwrap())")
    worker = Program("worker", "shop:app", "--processes=1", env={}, cwd=tmp_path)
    try:
        worker.wait_for_log(READY, 60)
        sent = run_module("send", env=os.environ, cwd=tmp_path, timeout_s=60)
        assert sent.stdout == "3\n", sent.stderr
        (polling,) = re.findall(r"^WARNING horsies\.listen: (.+)$", PAGE, re.MULTILINE)
        assert [polling in line for line in worker.logs].count(True) == int(not listens)
        assert worker.terminate() == 0
    finally:
        worker.close()
