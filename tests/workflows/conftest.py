"""The app of these tests, and a check of every status change of a workflow or a node."""

from collections.abc import Generator
from typing import Any, LiteralString

import psycopg
import pytest

from tests.fixtures.apps import load_fresh
from tests.model.transitions import NODE_TRANSITIONS, WORKFLOW_TRANSITIONS

# Without a unique index, which would let transactions wait for each other where they otherwise do not.
WATCH: LiteralString = """
create table public.moves (whose text, before text, after text);

create function public.note_move() returns trigger language plpgsql as $$
begin
    insert into public.moves values (tg_table_name, old.status, new.status);
    return null;
end $$;

create trigger watch after update of status on horsies.nodes
    for each row when (old.status is distinct from new.status) execute function public.note_move();
create trigger watch after update of status on horsies.workflows
    for each row when (old.status is distinct from new.status) execute function public.note_move();
"""
LEGAL = {
    *(("nodes", before, after) for before, moves in NODE_TRANSITIONS.items() for after in moves),
    *(("workflows", before, after) for before, moves in WORKFLOW_TRANSITIONS.items() for after in moves),
}


@pytest.fixture
def graphs(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("graphs")
    yield module
    module.app.close()


@pytest.fixture(autouse=True)
def only_legal_moves(request: pytest.FixtureRequest) -> Generator[None]:
    """Fail a test in which a status changed in an illegal way."""
    if "database" not in request.fixturenames:
        yield
        return
    database: str = request.getfixturevalue("database")
    with psycopg.connect(database, autocommit=True) as watcher:
        watcher.execute(WATCH)
    yield
    with psycopg.connect(database) as watcher:
        moves = watcher.execute("select distinct whose, before, after from public.moves").fetchall()
    assert [move for move in moves if move not in LEGAL] == []
