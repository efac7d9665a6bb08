"""Record which functions of horsies a process enters while the trace is switched on.

`make walk` starts a worker with $HORSIES_WALK set to a folder. The app of the worker (`tools/walk_app.py`) imports this module in the worker's
parent process and in each child, and installs the tracer there. The product contains no code for it.

The folder has two files. `window` is one byte, mapped into the memory of every process: 0 while the trace is off, otherwise the number of the
current window. `trace` has one JSON line for each function that a process enters in a window for the first time.
"""

import json
import mmap
import os
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

FOLDER_VARIABLE: Final = "HORSIES_WALK"
PARENT_VARIABLE: Final = "HORSIES_WALK_PARENT"
PRODUCER: Final = "producer"
PARENT: Final = "worker parent"
CHILD: Final = "worker child"

# Python 3.12 runs comprehensions inside their function, so they never count as functions of their own.
_INLINED: Final = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


def package_folder() -> Path:
    """Return the folder of the installed package `horsies`."""
    spec = find_spec("horsies")
    if spec is None or spec.origin is None:
        raise ImportError("horsies is not installed in this environment; run `make` to create it")
    return Path(spec.origin).parent


def prepare_folder(folder: Path) -> None:
    """Create the files of a trace that is switched off."""
    (folder / "window").write_bytes(b"\0")
    (folder / "trace").touch()


def install(folder: Path, process: str) -> None:
    """Trace this thread and all threads that start from now on."""
    with (folder / "window").open("rb") as file:
        window = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    profile = _Profiler(window, folder / "trace", process)
    threading.setprofile(profile)
    sys.setprofile(profile)


def install_from_environment() -> None:
    """Trace a process of a worker that `make walk` has started; do nothing in any other process."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    # The parent imports the app first, and its children inherit its environment.
    parent = os.environ.setdefault(PARENT_VARIABLE, str(os.getpid()))
    install(Path(folder), PARENT if parent == str(os.getpid()) else CHILD)


class _Profiler:
    """The profile function: writes a line when a function is entered for the first time in a window.

    The line is written at once, because a child may end at any time. Appending keeps the lines of several processes apart.
    """

    def __init__(self, window: mmap.mmap, trace: Path, process: str) -> None:
        self._window = window
        self._trace = os.open(trace, os.O_WRONLY | os.O_APPEND)
        self._process = process
        self._package = f"{package_folder()}{os.sep}"
        self._seen: set[tuple[int, CodeType]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not (window := self._window[0]):
            return
        code = frame.f_code
        if (window, code) in self._seen or not code.co_filename.startswith(self._package):
            return
        self._seen.add((window, code))
        function = code.co_qualname
        while function.rpartition(".")[2] in _INLINED:
            function = function.rpartition(".")[0].removesuffix(".<locals>")
        if function == "<module>":  # an import is not a step of the walk
            return
        entry = [window, self._process, time.monotonic_ns(), code.co_filename.removeprefix(self._package), function]
        os.write(self._trace, json.dumps(entry).encode() + b"\n")
