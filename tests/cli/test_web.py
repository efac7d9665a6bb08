"""`horsies web`: what it refuses to serve, how it starts and stops, and the lines of its password file."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from horsies.cli.main import main
from horsies.web.security import hash_token, is_password, read_credentials
from tests.cli.conftest import Cli
from tests.fixtures.eventually import eventually
from tests.fixtures.proxies import Proxy
from tests.fixtures.web import fetch, free_port
from tests.fixtures.workers import Program

ALL = "0.0.0.0"  # noqa: S104 - what is refused
TOKEN = "horsies_" + "t" * 43
ADDRESS = r"the dashboard is at (http://(?:127\.0\.0\.1|\[::1\]|localhost):(\d+)\S*/)"

Start = Callable[..., Program]


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    file.write_text(f"script operator {hash_token(TOKEN)}\n")
    return file


@pytest.fixture
def start(database: str) -> Generator[Start]:
    """`start("--port", "0")`: a dashboard of the test's database, in a process of its own."""
    started: list[Program] = []

    def begin(*words: str, url: str = database, **env: str) -> Program:
        started.append(Program("web", "--database-url", url, *words, env=env))
        return started[-1]

    yield begin
    for program in started:
        program.close()


# -- what is refused


@pytest.mark.parametrize(
    "host", [ALL, "::", "192.0.2.1", "", "0", "127.1", "2130706433", "example.org", "localhost.example.org"]
)
def test_without_authentication_no_other_machine_is_served(cli: Cli, host: str) -> None:
    ran = cli("web", "--host", host, "--port", "0")
    assert ran.code == 2
    assert "there is no authentication" in ran.err


def test_an_empty_variable_with_passwords_is_no_way_to_serve_all(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_WEB_PASSWORDS", "")
    ran = cli("web", "--host", ALL, "--port", "0")
    assert ran.code == 1
    assert "no credential" in ran.err


def test_a_bad_line_is_named_and_not_shown(cli: Cli, tmp_path: Path) -> None:
    (file := tmp_path / "passwords").write_text("alice operator hunter2\nbob admin hunter2\n")
    ran = cli("web", "--password-file", str(file), "--port", "0")
    assert ran.code == 1
    assert "line 1" in ran.err
    assert "line 2" in ran.err
    assert "hunter2" not in ran.err


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"", b"# nothing\n"])
def test_a_file_that_cannot_be_used_is_an_error(cli: Cli, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "passwords"
    if content is not None:
        file.write_bytes(content)
    ran = cli("web", "--password-file", str(file), "--port", "0")
    assert ran.code == 1
    assert "password" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--trust-header", "X-User"], "--trust-header requires --trusted-proxy"),
        (["--operator", "alice"], "--operator requires --trust-header"),
        (["--trust-header", "X-User", "--trusted-proxy", "nonsense"], "--trusted-proxy"),
        (["--trusted-proxy", "nonsense"], "does not appear to be an IPv4 or IPv6"),
        (["--root-path", "horsies"], "--root-path is a path"),
        (["--root-path", "//evil.example"], "--root-path is a path"),
        (["--root-path", "/a/../b"], "--root-path is a path"),
        (["--root-path", "/a b"], "--root-path is a path"),
        (["--port", "70000"], "--port"),
        (["--payloads", "some"], "--payloads"),
        (["--trace-url", "https://jaeger.example/trace/"], "{trace_id}"),
        (["--trace-url", "javascript:alert('{trace_id}')"], "{trace_id}"),
    ],
)
def test_wrong_options_are_explained(cli: Cli, words: list[str], problem: str) -> None:
    ran = cli("web", *words, "--port", "0") if "--port" not in words else cli("web", *words)
    assert ran.code == 2
    assert problem in ran.err


def test_two_ways_to_know_users_are_refused(cli: Cli, password_file: Path) -> None:
    words = ["--password-file", str(password_file), "--trust-header", "X-User", "--trusted-proxy", "10.0.0.1"]
    ran = cli("web", *words, "--port", "0")
    assert ran.code == 2
    assert "one of them decides" in ran.err


def test_a_bad_certificate_is_explained(cli: Cli, tmp_path: Path) -> None:
    (file := tmp_path / "cert.pem").write_text("nonsense")
    assert cli("web", "--port", "0", "--tls-key", str(file)).code == 2
    ran = cli("web", "--port", "0", "--tls-cert", str(file))
    assert ran.code == 1
    assert "cannot use the certificate" in ran.err


def test_a_short_secret_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_WEB_SECRET", "secret")
    ran = cli("web", "--port", "0")
    assert ran.code == 2
    assert "too short" in ran.err


def test_a_database_without_the_schema_is_refused(empty_database: str) -> None:
    result = CliRunner().invoke(main, ["web", "--database-url", empty_database, "--port", "0"])
    assert result.exit_code == 1
    assert "horsies migrate" in result.stderr


def test_without_the_extra_it_says_what_to_install(database: str) -> None:
    code = (
        "import sys; from importlib import util; find = util.find_spec; "
        "util.find_spec = lambda name, *rest: None if name == 'uvicorn' else find(name, *rest); "
        f"from horsies.cli.main import main; main(['web', '--database-url', {database!r}])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert 'pip install "horsies[web]"' in ran.stderr


# -- start and stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_address_and_stops_cleanly(start: Start, number: int) -> None:
    program = start("--port", "0", "--root-path", "/ops/")
    found = program.wait_for_log(ADDRESS)
    assert found[1].endswith("/ops/")
    assert fetch(int(found[2]), "/").status == 200
    program.signal(number)
    assert program.wait(15) == 0
    assert not any("Traceback" in line for line in program.logs)


def test_a_port_that_is_taken_is_an_error_or_another_one_is_taken(cli: Cli, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = cli("web", "--port", str(port))
        assert ran.code == 1
        assert f"cannot serve 127.0.0.1:{port}" in ran.err
        other = start("--port", str(port), "--any-port").wait_for_log(ADDRESS)
        assert int(other[2]) != port
        assert fetch(int(other[2]), "/").status == 200


def test_it_starts_without_the_database_and_serves_when_it_is_there(start: Start, proxy: Proxy) -> None:
    proxy.cut()
    found = start("--port", "0", url=proxy.url).wait_for_log(ADDRESS, 30)
    assert fetch(int(found[2]), "/").status == 503
    proxy.heal()
    eventually(lambda: fetch(int(found[2]), "/").status == 200, 20)


def test_with_passwords_it_serves_other_machines_but_nothing_without_a_login(start: Start, password_file: Path) -> None:
    port = free_port()
    program = start("--host", ALL, "--port", str(port), "--password-file", str(password_file))
    program.wait_for_log("the dashboard is at")
    assert any("passwords travel without encryption" in line for line in program.logs)
    assert fetch(port, "/").status == 401
    assert TOKEN not in "\n".join(program.logs)


# -- clients that keep it waiting


def send_without_reading(connection: socket.socket) -> None:
    """Requests whose answers pile up, until the server closes the connection."""
    for _ in range(10_000):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        time.sleep(0.001)


def test_clients_that_send_nothing_or_read_nothing_lose_their_connections(database: str, tmp_path: Path) -> None:
    port = free_port()
    (script := tmp_path / "serve.py").write_text(
        "from horsies.web import server\n"
        "server.PATIENCE_S, server.CHECK_S = 0.5, 0.1\n"
        "from horsies.cli.main import main\n"
        f"main(['web', '--database-url', {database!r}, '--port', '{port}'])\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: fetch(port, "/").status == 200, 30)
        silent, slow, idle, deaf = (socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(4))
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        idle.sendall(b"GET /static/0/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for connection in (silent, slow):
            assert connection.recv(1) == b"", "closed, without an answer"
        while idle.recv(65_536):
            pass
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        with pytest.raises(OSError):  # noqa: PT011 - reset, or broken
            send_without_reading(deaf)
        for connection in (silent, slow, idle, deaf):
            connection.close()
        assert fetch(port, "/").status == 200
    finally:
        process.terminate()
        assert process.wait(15) == 0


# -- lines of the password file


def run(*words: str, given: str | None = None) -> Any:
    return CliRunner().invoke(main, ["web", *words], input=given)


def test_a_password_from_a_pipe_becomes_a_line_of_the_file() -> None:
    ran = run("hash-password", "--name", "alice", "--role", "read-only", given="correct horse\n")
    assert ran.exit_code == 0, ran.output
    assert "correct" not in ran.output
    name, role, hashed = ran.stdout.split()
    assert (name, role) == ("alice", "read-only")
    assert is_password("correct horse", hashed)
    assert len(read_credentials(ran.stdout, "it")) == 1


@pytest.mark.parametrize("password", ["", "short", "x" * 1_001])
def test_a_password_that_is_too_short_or_could_not_be_used_is_refused(password: str) -> None:
    ran = run("hash-password", given=f"{password}\n")
    assert ran.exit_code == 2
    assert ran.stdout == ""


@pytest.mark.parametrize("name", ["", "two words", "#alice", "line\nbreak", "x" * 201, " ", "bell\x07"])
def test_a_name_that_would_not_be_read_is_refused(name: str) -> None:
    for command in ("hash-password", "make-token"):
        assert run(command, "--name", name, given="correct horse\n").exit_code == 2


def test_on_a_terminal_the_password_is_asked_for_twice_and_not_shown(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    import os  # noqa: PLC0415 - with the terminal

    main_end, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "horsies.cli.main", "web", "hash-password"], stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, text=True
    )  # fmt: skip
    os.close(terminal)
    shown = ""
    for answer in ("correct horse\n", "correct horse\n"):
        while not shown.rstrip().endswith(":"):
            shown += os.read(main_end, 1_000).decode()
        os.write(main_end, answer.encode())
        shown += "|"
    out, _ = process.communicate(timeout=30)
    os.close(main_end)
    assert process.returncode == 0
    assert "correct" not in shown + out
    assert len(read_credentials(out, "it")) == 1


def test_a_token_is_shown_once_and_only_its_hash_is_in_the_line() -> None:
    ran = run("make-token", "--name", "deploy", "--role", "operator")
    assert ran.exit_code == 0
    token = re.findall(r"Bearer (horsies_[\w-]{43})", ran.stderr)[0]
    assert token not in ran.stdout
    assert ran.stdout.split() == ["deploy", "operator", hash_token(token)]
