"""Real processes share one embedded server: they join, leave, fork and are killed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import psycopg
import pytest

from horsies.embedded import locks
from horsies.embedded.server import EmbeddedServer

# A user executes lines of Python from its standard input, and exits when that ends.
USER = """
import os, sys, psycopg
from horsies.embedded.project import embedded_database_url

def use():
    url = embedded_database_url()
    with psycopg.connect(url) as connection:
        connection.execute("select 1")
    return url

print("begins", flush=True)
print(use(), flush=True)
for line in sys.stdin:
    exec(line)
"""


class User:
    """A process that uses the embedded server."""

    def __init__(self, folder: Path) -> None:
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end_family
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER],
            env=os.environ | {"HORSIES_EMBEDDED_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            start_new_session=True,  # so that its forked children can be found and ended with it
        )
        assert self.receive_message() == "begins"

    def receive_message(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def uses(self) -> str:
        """Wait until it has used the server, and return the URL."""
        url = self.receive_message()
        assert url.startswith("postgresql://"), self.errors()
        return url

    def execute(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def begin_to_leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> int:
        self.begin_to_leave()
        return self.process.wait()

    def errors(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end_family(self) -> None:
        """End it and what it forked, and close our side."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def folder() -> Generator[Path]:
    home = Path(tempfile.mkdtemp(prefix="horsies-t-", dir="/tmp"))
    home.chmod(0o711)
    yield home / "shared"
    EmbeddedServer(home / "shared").stop("immediate")
    shutil.rmtree(home)


@pytest.fixture
def join(folder: Path) -> Generator[Callable[[], User]]:
    users: list[User] = []

    def start() -> User:
        users.append(User(folder))
        return users[-1]

    yield start
    for user in users:
        user.end_family()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_two_that_start_at_once_share_one_server_and_the_last_stops_it(folder: Path, join: Callable[[], User]) -> None:
    one, two = join(), join()
    assert one.uses() == two.uses()
    pid = EmbeddedServer(folder).pid
    assert one.end() == 0
    assert EmbeddedServer(folder).pid == pid
    assert two.end() == 0
    assert not EmbeddedServer(folder).is_running
    assert not (folder / "socket").exists()


def test_each_user_warns_once_that_it_is_for_development(folder: Path, join: Callable[[], User]) -> None:
    user = join()
    user.uses()
    user.execute("use()")
    assert user.end() == 0
    assert user.errors().count("for development only") == 1
    assert str(folder) in user.errors()


def test_it_is_durable_and_has_small_settings(join: Callable[[], User]) -> None:
    with psycopg.connect(join().uses()) as connection:
        row = connection.execute(
            "select current_setting('fsync'), current_setting('synchronous_commit'),"
            " current_setting('shared_buffers'), current_setting('max_connections')"
        ).fetchone()
    assert row == ("on", "on", "128MB", "200")


def test_a_user_that_joins_while_the_last_one_stops_the_server_gets_a_new_one(
    folder: Path, join: Callable[[], User]
) -> None:
    leaver = join()
    url = leaver.uses()
    first = EmbeddedServer(folder).pid
    connection = psycopg.connect(url)
    back_end = connection.info.backend_pid
    os.kill(back_end, signal.SIGSTOP)  # the stop cannot end before this one continues
    try:
        leaver.begin_to_leave()
        wait_for(lambda: "stopping" in (folder / "data" / "postmaster.pid").read_text())
        joiner = join()
        wait_for(lambda: is_locked(folder / "start.lock"))
        assert leaver.process.poll() is None
    finally:
        os.kill(back_end, signal.SIGCONT)
    assert joiner.uses() == url
    assert EmbeddedServer(folder).pid != first
    connection.close()


def is_locked(path: Path) -> bool:
    lock = locks.try_lock_exclusive(path)
    if lock is None:
        return True
    lock.close()
    return False


def test_many_that_join_and_leave_can_all_use_the_server(folder: Path, join: Callable[[], User]) -> None:
    for _ in range(4):
        users = [join() for _ in range(3)]
        for user in users:
            user.begin_to_leave()  # each leaves as soon as it has used the server
        assert [user.process.wait() for user in users] == [0, 0, 0]
    assert not EmbeddedServer(folder).is_running


def test_a_server_whose_last_user_was_killed_serves_the_next(folder: Path, join: Callable[[], User]) -> None:
    killed = join()
    url = killed.uses()
    pid = EmbeddedServer(folder).pid
    killed.kill()
    assert EmbeddedServer(folder).pid == pid
    following = join()
    assert following.uses() == url
    assert EmbeddedServer(folder).pid == pid
    assert following.end() == 0
    assert not EmbeddedServer(folder).is_running


def test_a_killed_user_does_not_take_the_server_from_a_sibling(folder: Path, join: Callable[[], User]) -> None:
    killed, sibling = join(), join()
    killed.uses()
    url = sibling.uses()
    pid = EmbeddedServer(folder).pid
    killed.kill()
    join().uses()
    sibling.execute("print(use(), flush=True)")
    assert sibling.receive_message() == url
    assert EmbeddedServer(folder).pid == pid


@pytest.mark.parametrize("with_its_initdb", [False, True])
def test_a_starter_killed_during_initdb_does_not_block_others(
    folder: Path, join: Callable[[], User], *, with_its_initdb: bool
) -> None:
    starter = join()
    wait_for(lambda: bool(list(folder.glob("unfinished-*/PG_VERSION"))))
    family = psutil.Process(starter.process.pid).children(recursive=True)
    starter.kill()
    for process in family if with_its_initdb else []:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one killed before it
            process.kill()
    assert not (folder / "data").exists()
    join().uses()
    assert not list(folder.glob("unfinished-*"))


def test_a_starter_killed_while_the_server_starts_does_not_block_others(folder: Path, join: Callable[[], User]) -> None:
    starter = join()
    wait_for((folder / "data" / "postmaster.pid").exists)
    starter.kill()
    following = join()
    following.uses()
    assert following.end() == 0
    assert not EmbeddedServer(folder).is_running


def test_a_leaver_killed_while_it_stops_the_server_does_not_block_others(
    folder: Path, join: Callable[[], User]
) -> None:
    leaver = join()
    connection = psycopg.connect(leaver.uses())
    back_end = connection.info.backend_pid
    os.kill(back_end, signal.SIGSTOP)
    try:
        leaver.begin_to_leave()
        wait_for(lambda: "stopping" in (folder / "data" / "postmaster.pid").read_text())
        leaver.process.kill()
        joiner = join()
        wait_for(lambda: is_locked(folder / "start.lock"))
    finally:
        os.kill(back_end, signal.SIGCONT)
    joiner.uses()
    connection.close()


def test_a_killed_server_is_recovered_by_the_next_user_at_the_same_address(
    folder: Path, join: Callable[[], User]
) -> None:
    user = join()
    url = user.uses()
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 7 as n")
    os.kill(EmbeddedServer(folder).pid, signal.SIGKILL)
    wait_for(lambda: not EmbeddedServer(folder).is_running)
    assert join().uses() == url
    with psycopg.connect(url) as connection:
        assert connection.execute("select n from kept").fetchone() == (7,)
    user.execute("print(use(), flush=True)")
    assert user.receive_message() == url


def test_a_user_recovers_a_killed_server_with_its_next_call(folder: Path, join: Callable[[], User]) -> None:
    user = join()
    url = user.uses()
    os.kill(EmbeddedServer(folder).pid, signal.SIGKILL)
    wait_for(lambda: not EmbeddedServer(folder).is_running)
    user.execute("print(use(), flush=True)")
    assert user.receive_message() == url
    assert user.end() == 0
    assert not EmbeddedServer(folder).is_running


def test_a_forked_child_that_exits_takes_nothing_from_its_parent(folder: Path, join: Callable[[], User]) -> None:
    user = join()
    url = user.uses()
    user.execute("child = os.fork() or sys.exit(0)")
    user.execute("os.waitpid(child, 0); print(use(), flush=True)")
    assert user.receive_message() == url
    assert user.end() == 0
    assert not EmbeddedServer(folder).is_running


def test_a_forked_child_keeps_the_server_after_its_parent_left_and_stops_it_at_its_own_end(
    folder: Path, join: Callable[[], User]
) -> None:
    parent = join()
    url = parent.uses()
    gate = folder / "gate"
    os.mkfifo(gate)
    parent.execute(f"os.fork() or (open({str(gate)!r}).read(), use(), sys.exit(0))")
    parent.begin_to_leave()
    assert parent.process.wait() == 0
    third = join()
    assert third.uses() == url
    assert third.end() == 0
    assert EmbeddedServer(folder).is_running
    gate.open("w").close()  # lets the child continue
    wait_for(lambda: not EmbeddedServer(folder).is_running)


def test_a_daemon_that_closed_every_descriptor_joins_again(folder: Path, join: Callable[[], User]) -> None:
    user = join()
    url = user.uses()
    user.execute("os.closerange(3, 1024)")
    user.execute("print(use(), flush=True)")
    assert user.receive_message() == url
    third = join()
    third.uses()
    assert third.end() == 0
    assert EmbeddedServer(folder).is_running
    assert user.end() == 0
    assert not EmbeddedServer(folder).is_running


def test_a_child_forked_during_a_start_does_not_keep_others_from_starting(
    folder: Path, join: Callable[[], User]
) -> None:
    user = join()
    user.uses()
    gate = folder / "gate"
    os.mkfifo(gate)
    user.execute("import pathlib; from horsies.embedded import locks")
    user.execute(f"lock = locks.lock_exclusive(pathlib.Path({str(folder / 'start.lock')!r}))")
    user.execute(f"os.fork() or (print('forked', flush=True), open({str(gate)!r}).read(), os._exit(0))")
    assert user.receive_message() == "forked"
    user.process.kill()
    join().uses()
    gate.open("w").close()
