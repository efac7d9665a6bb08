"""The retired words: metaphors that `src/`, the docs, the metrics and the log lines no longer use, each with what to write instead."""

from dataclasses import dataclass
from enum import Flag, auto
from typing import Final


class Where(Flag):
    """Where a word is not allowed."""

    NAME = auto()
    """As a part of any identifier, module, folder, metric or SQL name: `clerk` in `_ring_clerk` and `ClerkDone`."""
    TEXT = auto()
    """As a word of any text: comments, docstrings, log lines, error messages, docs."""
    WHOLE = auto()
    """As the whole name of a class or a module. For words that have an ordinary meaning elsewhere, such as `line`."""
    FUNCTION = auto()
    """As a part of the name of a function."""


@dataclass(frozen=True, slots=True)
class Word:
    forms: tuple[str, ...]
    instead: str
    where: Where


def _word(forms: str, instead: str, where: Where) -> Word:
    return Word(tuple(forms.split()), instead, where)


_EVERYWHERE: Final = Where.NAME | Where.TEXT

RETIRED: Final = (
    # The worker
    _word("pump pumps", "dispatcher", _EVERYWHERE),
    _word("turn turns", "batch", Where.NAME),
    _word("books", "pending work", Where.NAME),
    _word("clerk clerks", "reader, or child reports", _EVERYWHERE),
    _word("herald heralds", "task events", _EVERYWHERE),
    _word("courier couriers", "loop connection, or batch sender", _EVERYWHERE),
    _word("room rooms", "capacity, or folder", Where.WHOLE),
    _word("frame frames", "prefetch policy, or transaction frame", Where.WHOLE),
    _word("marks", "watermarks", Where.WHOLE),
    _word("news", "wakeups; in SQL resolved_nodes", Where.NAME),
    _word("alarm", "wakeup timer", Where.WHOLE),
    _word("stops", "task stopper, or timeouts", Where.WHOLE),
    _word("ticket tickets", "waiter, or assignment", Where.NAME),
    _word("member members", "child", Where.WHOLE),
    _word("line lines", "child socket, or copy format", Where.WHOLE),
    _word("template templates", "fork server", Where.WHOLE),
    _word("birth births born", "process factory, spawned", Where.NAME),
    _word("nursery", "fork server process", _EVERYWHERE),
    _word("bequeath bequeaths bequeathed", "report_crash", _EVERYWHERE),
    _word("condemn condemns condemned", "set_kill_reason", _EVERYWHERE),
    _word("reprieve reprieves reprieved", "extend", _EVERYWHERE),
    _word("vitals", "worker stats", _EVERYWHERE),
    _word("subject subjects", "wait source, or health source", Where.WHOLE),
    _word("life", "stop requests", Where.WHOLE),
    _word("strangers", "unknown claims", _EVERYWHERE),
    _word("suspects", "quarantined", Where.NAME),
    # Inside a child
    _word("crowd crowds", "concurrent", _EVERYWHERE),
    _word("relief", "standby reader", Where.NAME),
    _word("tray", "pending", _EVERYWHERE),
    # The database
    _word("desk desks", "waiter hub, or inbox", _EVERYWHERE),
    _word("seat seats", "waiter, or slot", Where.NAME),
    _word("bell bells", "subscriptions", _EVERYWHERE),
    _word("ring rings", "notify", Where.NAME),
    _word("rung", "notified", _EVERYWHERE),
    _word("deaf", "polling", _EVERYWHERE),
    _word("farewell", "final operation", _EVERYWHERE),
    _word("loan loans", "caller connection", _EVERYWHERE),
    _word("partings", "lifecycle", _EVERYWHERE),
    _word("fleeting", "unpooled", _EVERYWHERE),
    _word("trouble troubles", "error kind", Where.NAME),
    _word("census", "stats", _EVERYWHERE),
    _word("dialogue", "pipeline", _EVERYWHERE),
    _word("converse", "execute", Where.NAME),
    _word("hearing", "listen status", Where.NAME),
    _word("telling", "notifying", Where.NAME),
    _word("say says", "send", Where.FUNCTION),
    _word("hear hears", "receive", Where.FUNCTION),
    _word("ask asks", "request, or execute", Where.FUNCTION),
    _word("tell tells", "notify, or report", Where.FUNCTION),
    _word("answer answers", "result, or response", Where.WHOLE),
    # Maintenance
    _word("keeper keepers", "maintenance leader", _EVERYWHERE),
    _word("reap reaps reaped reaper reaping", "rescue, or for a process: wait for", _EVERYWHERE),
    _word("bury buries buried burying", "declare dead, or remove", _EVERYWHERE),
    # Command line, doctor, workflows, tests
    _word("door doors", "__main__, entry point", Where.NAME),
    _word("cure cures cured", "fix", _EVERYWHERE),
    _word("mend mends mended", "fix", _EVERYWHERE),
    _word("picture pictures", "render", Where.NAME),
    _word("clockwork", "clock", _EVERYWHERE),
    _word("hands", "runner", Where.WHOLE),
    _word("looks", "assertions", Where.WHOLE),
    _word("drains", "drain", Where.WHOLE),
    # Voice
    _word("told", "reported, notified, configured", _EVERYWHERE),
    _word("heard", "received", _EVERYWHERE),
    _word("whoever", "the process, the caller, ...", _EVERYWHERE),
    _word("nobody", "no worker, no waiter, ...", _EVERYWHERE),
    _word("somebody everybody", "a waiter, all workers, ...", _EVERYWHERE),
    _word("anew", "again", Where.TEXT),
    _word("meanwhile", "in the meantime, or leave it out", Where.TEXT),
)

RETIRED_PHRASES: Final = {
    "for ever": "forever, or without a limit",
    "in vain": "without success",
    # Words that are allowed in text, but not in these phrases, where they can only be the retired ones.
    "a turn": "a batch",
    "the turn": "the batch",
    "each turn": "each batch",
    "every turn": "every batch",
    "next turn": "next batch",
    "the books": "the pending work",
}

ALLOWED: Final = {
    # text that may stand although it contains a retired word: the reason
    "'nobody'": "an account of the operating system",
    '"nobody"': "an account of the operating system",
}
