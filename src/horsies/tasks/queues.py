"""Run-time switches of queues, kept in the database: they hold for every worker, at once, until they are turned back."""

from horsies.db.load import load
from horsies.db.op import Op, ask, rows

SQL = load(__file__)


def pause_queue(name: str) -> Op[None]:
    """Nothing more is claimed from this queue; what runs goes on, and sends are accepted."""
    yield from rows(SQL["pause_queue"](name=name))


def resume_queue(name: str) -> Op[None]:
    yield from ask(SQL["resume_queue"](name=name), SQL["notify_resumed"]())


def get_paused_queues() -> Op[list[str]]:
    found = yield from rows(SQL["get_paused_queues"]())
    return [name for (name,) in found]
