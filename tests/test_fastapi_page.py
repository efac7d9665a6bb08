"""docs/fastapi.md, from the first step to the last: the file is saved, the commands run, and print what the page says."""

import json
import re
import signal
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.web import fetch, free_port
from tests.fixtures.workers import READY, Program
from tests.test_tutorial import BLOCK, Reader, folder

__all__ = ["folder"]

PAGE = Path(__file__).parents[1] / "docs" / "fastapi.md"
STEPS_MAX = 8


@pytest.mark.timeout(180)
def test_the_page(folder: Path) -> None:
    page = PAGE.read_text()
    blocks = list(BLOCK.finditer(page))
    commands = [
        line
        for each in blocks
        if each["kind"] == "console"
        for line in re.findall(r"^\$ (.+)$", each["text"], re.MULTILINE)
    ]
    assert [command.split()[0] for command in commands] == ["pip", "horsies", "uvicorn", "curl", "curl"]
    assert len(commands) + 1 <= STEPS_MAX
    reader = Reader(folder)
    (source,) = [each for each in blocks if each["kind"] == "python"]
    reader.save(source["title"], source["text"])
    port = free_port()
    with closing(Program(*commands[1].split()[1:], "--no-web", env=reader.env, cwd=reader.shop)) as dev:
        dev.wait_for_log(READY, 60)
        uvicorn = Path(sys.executable).parent / "uvicorn"
        served = Program(*commands[2].split()[1:], f"--port={port}", env=reader.env, cwd=reader.shop, script=uvicorn)
        try:
            eventually(lambda: fetch(port, "/docs").status == 200, 30, seen=lambda: served.logs)
            _order_and_follow(f"http://127.0.0.1:{port}")
            served.signal(signal.SIGTERM)
            served.process.wait(30)
        finally:
            served.close()


def _order_and_follow(address: str) -> None:
    with httpx.Client(base_url=address, timeout=30) as client:
        task_id = client.post("/reports?year=2026").json()["id"]
        assert client.get(f"/reports/{task_id}?wait_ms=20000").json() == {"rows": 52}
        assert client.get("/reports/01932f0e-0000-7000-8000-000000000000").status_code == 404
        refused = client.post("/reports?year=1999").json()["id"]
        assert "NO_DATA" in client.get(f"/reports/{refused}?wait_ms=20000").text
        events = client.get(f"/reports/{client.post('/reports?year=2026').json()['id']}/events").text
        assert events.endswith("event: done\ndata: 1\n\n")
        fractions = [
            json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")
        ]
        assert fractions == sorted(fractions)
        assert "EventSource" in client.get(f"/reports/{task_id}/page").text
        assert client.get("/horsies/").status_code == 200
