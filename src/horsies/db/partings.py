"""How a process parts from what is open: it is closed before the process ends, and after a fork it is left to the parent."""

import atexit
import os
from typing import Protocol
from weakref import WeakSet


class Open(Protocol):
    def close(self) -> None: ...
    def forget_inherited(self) -> None: ...


_open: "WeakSet[Open]" = WeakSet()
_inherited: list[object] = []


def enrol(opened: Open) -> None:
    """Of what is called at exit, the last that was registered comes first: an embedded server is stopped after we have left it."""
    _open.add(opened)
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def leave_to_parent(*sockets: object) -> None:
    """It alone uses and closes them: here they are kept, and never touched."""
    _inherited.append(sockets)


def _close_all() -> None:
    for opened in list(_open):
        opened.close()


def _forget_all() -> None:
    for opened in list(_open):
        opened.forget_inherited()


os.register_at_fork(after_in_child=_forget_all)
