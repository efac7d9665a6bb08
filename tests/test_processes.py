"""The processes that tests fork are like those that they would spawn."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.processes import ModuleProcess, forked_pids, run_module

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

REPORT = """
import atexit, json, os, signal, sys

main = sys.modules["__main__"]
report = {
    "arguments": [sys.argv, sys.orig_argv],
    "path": sys.path,
    "flags": list(sys.flags),
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "main": [main.__name__, main.__file__, main.__package__, main.__spec__.name, sorted(n for n in vars(main) if not n.startswith("__"))],
    "descriptors": {number: os.path.exists(f"/proc/self/fd/{number}") for number in range(32)},
    "inheritable": {number: os.get_inheritable(number) for number in (0, 1, 2)},
    "threads": len(os.listdir("/proc/self/task")),
    "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "streams": [[each.encoding, each.errors, each.line_buffering] for each in (sys.stdin, sys.stdout, sys.stderr)],
    "modules of tests": sorted(name for name in sys.modules if name.split(".")[0] in ("tests", "pytest", "_pytest")),
    "limits": [os.umask(0o22), os.nice(0)],
}
print(json.dumps(report))
atexit.register(print, "at exit")
sys.exit(int(sys.argv[1]))
"""
WAIT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in the background
print("waits", flush=True)
os.read(0, 1)
"""
EITHER = pytest.mark.parametrize("kind", [ModuleProcess, subprocess.Popen])


def start(kind: type["subprocess.Popen[str]"], folder: Path, source: str, *words: str, **options: Any) -> Any:
    (folder / "program.py").write_text(source)
    return kind(
        [sys.executable, "-m", "program", *words],
        cwd=folder,
        env={**os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"process_group": 0}])
def test_a_forked_process_is_like_a_spawned_one(tmp_path: Path, options: dict[str, Any]) -> None:
    reports: list[Any] = []
    for kind in (subprocess.Popen, ModuleProcess):
        with start(kind, tmp_path, REPORT, "7", "--word", **options) as process:
            report, at_exit = process.communicate(timeout=20)[0].splitlines()
        assert process.returncode == 7
        assert at_exit == "at exit"
        reports.append(json.loads(report))
    assert reports[0] == reports[1]
    assert reports[0]["threads"] == 1


def test_a_forked_process_is_a_copy_of_the_server(tmp_path: Path) -> None:
    with start(ModuleProcess, tmp_path, WAIT) as process:
        assert process.stdout.readline() == "waits\n"
        assert forked_pids() == {process.pid}
        assert any("process_server.py" in word for word in psutil.Process(process.pid).cmdline())
        assert process.poll() is None
        process.stdin.write("x")
    assert process.returncode == 0
    assert not forked_pids()
    assert not psutil.pid_exists(process.pid)


@EITHER
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_signal_is_its_exit_code(tmp_path: Path, kind: type["subprocess.Popen[str]"], number: signal.Signals) -> None:
    with start(kind, tmp_path, WAIT) as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        assert process.wait(20) == -number


def test_nothing_of_a_test_is_inherited(tmp_path: Path) -> None:
    """Neither a socket that is inheritable, nor a signal that is ignored by the test process."""
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with ours, theirs:
            theirs.set_inheritable(True)
            with start(ModuleProcess, tmp_path, WAIT) as process:
                assert process.stdout.readline() == "waits\n"
                theirs.close()
                ours.settimeout(20)
                assert ours.recv(1) == b""
                process.send_signal(signal.SIGUSR1)
                assert process.wait(20) == -signal.SIGUSR1
    finally:
        signal.signal(signal.SIGUSR1, before)


@EITHER
def test_an_ended_process_keeps_its_pid_until_it_is_waited_for(
    tmp_path: Path, kind: type["subprocess.Popen[str]"]
) -> None:
    with start(kind, tmp_path, "") as process:
        assert process.stdout.read() == ""
        ended = psutil.Process(process.pid)
        eventually(lambda: ended.status() == psutil.STATUS_ZOMBIE, what="the process has ended")
        assert process.wait() == 0
        assert not ended.is_running()


def test_descriptors_that_are_passed_have_the_same_numbers(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with file.open("w") as passed:
        number = passed.fileno()
        with start(
            ModuleProcess,
            tmp_path,
            "import os, sys; os.write(int(sys.argv[1]), b'here')",
            f"{number}",
            pass_fds=[number],
        ):
            pass
    assert file.read_text() == "here"


def test_one_whose_interpreter_would_start_otherwise_is_spawned(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print(sys.flags.optimize)")
    done = run_module("program", env={"PYTHONOPTIMIZE": "2"}, cwd=tmp_path, timeout_s=20)
    assert (done.returncode, done.stdout) == (0, "2\n")
