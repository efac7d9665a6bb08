"""Eight situations at once, each made by real workers: each is named with its object and its cause, and nothing else is."""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Mapping

from horsies.doctor.findings import Severity
from tests.cli.conftest import run
from tests.fixtures.processes import ModuleProcess
from tests.fixtures.situations import LOCATOR, Situation, Situations
from tests.fixtures.workers import ROOT

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

FIRST_WORDS = {
    "paused queue": "queue 'invoices' has been paused",
    "stuck queue": "queue 'reports' is blocked by make_report",
    "lagging queue": "queue 'imports' is late by 2m",
    "poison task": "task 'parse_upload' has killed 2 child processes",
    "killed worker": "1 worker died in the last 1h",
    "failing schedule": "schedule 'nightly stock' failed 3 times in a row: STOCK_AWAY",
    "unknown task": "no live worker knows task 'send_gift'",
    "paused workflow": "workflow 'order' is paused because its node 'pay' failed",
}
"""What remains of each on a small screen."""


def test_each_is_named_with_its_cause(situations: Situations, database: str) -> None:
    planted = situations.planted
    assert planted.keys() == FIRST_WORDS.keys()
    expect_findings_of(situations)
    expect_report_of_doctor(planted, database)
    expect_first_screen(planted, screen_of_status(database, lines=24, columns=100), words=())
    tall = screen_of_status(database, lines=60, columns=120)
    expect_first_screen(planted, tall, words=[word for each in planted.values() for word in each.words])


def expect_findings_of(situations: Situations) -> None:
    findings = [finding for finding in situations.app.ops.findings() if finding.severity > Severity.INFO]
    by_code = {finding.code: finding for finding in findings}
    assert by_code.keys() == {situation.code for situation in situations.planted.values()}
    assert len(findings) == len(by_code)
    for situation in situations.planted.values():
        finding = by_code[situation.code]
        assert finding.target == situation.target
        assert situation.target.id in finding.seen + finding.fix
        for word in situation.words:
            assert word in finding.seen


def expect_report_of_doctor(planted: Mapping[str, Situation], database: str) -> None:
    report = run("doctor", LOCATOR, "--json", database_url=database)
    assert report.code == 1
    findings = {finding["code"]: finding for finding in json.loads(report.out)["findings"]}
    for situation in planted.values():
        finding = findings[situation.code.name]
        assert finding["target"] == {"kind": situation.target.kind, "id": situation.target.id}
        for word in situation.words:
            assert word in finding["seen"]


def expect_first_screen(planted: Mapping[str, Situation], screen: str, words: list[str] | tuple[str, ...]) -> None:
    flowing = " ".join(screen.split())
    for name, situation in planted.items():
        assert f"{situation.code.name}: {FIRST_WORDS[name]}" in flowing, screen
    for word in words:
        assert word.strip() in flowing, screen


def screen_of_status(database: str, *, lines: int, columns: int) -> str:
    """What `horsies status` prints on a terminal of this size."""
    screen = screen_of("status", LOCATOR, database=database, lines=lines, columns=columns)
    assert len(screen.splitlines()) < lines, screen
    return screen


def screen_of(*words: str, database: str, lines: int, columns: int) -> str:
    """What a command prints on a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "HORSIES_APP"}}
    process = ModuleProcess(
        [sys.executable, "-m", "horsies.cli.main", *words],
        cwd=ROOT,
        env={**env, "HORSIES_DATABASE_URL": database, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    with process, os.fdopen(ours, "rb", buffering=0) as terminal:
        output = b""
        while chunk := read(terminal.fileno()):
            output += chunk
        assert process.wait(20) in (0, 1), output
    return ESCAPES.sub("", output.decode()).replace("\r\n", "\n")


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # nothing has the other end open any more
        return b""
