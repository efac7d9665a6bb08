"""Make the screenshots of docs/dashboard.md: a small shop in a scratch PostgreSQL, `horsies web`, and a Chromium that does what a user does.

`python -m tools.screenshots [NAME ...]` makes all of them, or those whose names are given. Names and numbers are the same each time; ids and times are not.
"""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psycopg
from playwright.sync_api import Page, sync_playwright

from horsies import AppConfig, Horsies
from tests.fixtures.apps import APPS
from tests.fixtures.browsers import ARGUMENTS, find_chromium
from tests.fixtures.everything import Everything, add_failure, fill, keep_alive
from tests.fixtures.scratch_server import scratch_server
from tests.fixtures.web import free_port
from tests.fixtures.workers import Program

FOLDER: Final = Path(__file__).parents[1] / "docs" / "images" / "dashboard"
DATABASE: Final = "shop"
OUTAGE: Final = range(25, 5, -1)  # minutes ago
PER_MINUTE: Final = 12


@dataclass(frozen=True)
class Shot:
    """A picture of a page, after `prepare` has done what a user does."""

    name: str
    path: Callable[[Everything], str]
    prepare: Callable[[Page], object] = lambda _page: None
    is_dark: bool = False
    width: int = 1280
    height: int = 800


def see_group(page: Page) -> None:
    page.locator("tr", has_text="BANK_DOWN").locator("a", has_text="Retry all").hover()


def ask_to_retry_group(page: Page) -> None:
    page.locator("tr", has_text="BANK_DOWN").locator("a", has_text="Retry all").click()
    page.locator("h2", has_text="tasks match").wait_for()


def retry_group(page: Page) -> None:
    ask_to_retry_group(page)
    page.get_by_role("button", name="Retry 240 tasks").click()
    page.locator("#flash", has_text="Retry").wait_for()


def open_fix(page: Page) -> None:
    page.locator(".finding summary").first.click()


def see_graph(page: Page) -> None:
    page.locator("#graph a").first.wait_for()


def select_two(page: Page) -> None:
    for row in (1, 3):
        page.locator("tbody tr input").nth(row).check()


SHOTS: Final[Sequence[Shot]] = (
    Shot("overview", lambda _: "/", height=900),
    Shot("overview-dark", lambda _: "/", open_fix, is_dark=True, height=900),
    Shot("tasks", lambda _: "/tasks?statuses=FAILED&statuses=RUNNING", select_two),
    Shot("task", lambda shop: f"/tasks/{shop.tasks['many_failed_attempts']}"),
    Shot("workflow", lambda shop: f"/workflows/{shop.workflows['large']}", see_graph),
    Shot("schedules", lambda _: "/schedules", height=500),
    Shot("queues", lambda _: "/queues", height=500),
    Shot("workers", lambda _: "/workers", height=500),
    Shot("doctor", lambda _: "/doctor", height=600),
    Shot("phone", lambda _: "/", width=390),
    Shot("retry-1", lambda _: "/errors", see_group, height=600),
    Shot("retry-2", lambda _: "/errors", ask_to_retry_group, height=700),
    Shot("retry-3", lambda _: "/errors", retry_group, height=600),  # it changes the shop, so it is the last one
)


def main(arguments: Sequence[str]) -> str | None:
    """Return what is wrong, if something is."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; default: all of them")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write; default: docs/images/dashboard")
    options = parser.parse_args(arguments)
    names = [shot.name for shot in SHOTS]
    if unknown := set(options.names) - {*names}:
        return f"no screenshot is called {', '.join(sorted(unknown))}; choose from {', '.join(names)}"
    chromium = find_chromium()
    if chromium is None:
        return "there is no Chromium on this machine: install the package chromium, or name its program in $HORSIES_TEST_CHROMIUM"
    options.folder.mkdir(parents=True, exist_ok=True)
    take([shot for shot in SHOTS if shot.name in (options.names or names)], chromium, options.folder)
    return None


def take(shots: Sequence[Shot], chromium: str, folder: Path) -> None:
    arguments = [*ARGUMENTS, "--no-sandbox"] if os.geteuid() == 0 else ARGUMENTS
    with scratch_server() as server:
        with psycopg.connect(server.url("postgres"), autocommit=True) as sql:
            sql.execute(f"create database {DATABASE}".encode())
        url = server.url(DATABASE)
        shop = open_shop(url)
        with serve(url) as address, sync_playwright() as playwright, psycopg.connect(url, autocommit=True) as sql:
            browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
            for shot in shots:
                keep_alive(sql)
                page = browser.new_page(
                    viewport={"width": shot.width, "height": shot.height},
                    color_scheme="dark" if shot.is_dark else "light",
                    locale="en-GB",
                    timezone_id="UTC",
                )
                page.goto(address + shot.path(shop))
                page.locator("#live", has_text="Live").wait_for()
                shot.prepare(page)
                path = folder / f"{shot.name}.png"
                page.screenshot(path=path, animations="disabled", caret="hide")
                page.close()
                print(f"{path} {path.stat().st_size // 1024} KB")
            browser.close()


def open_shop(url: str) -> Everything:
    """Fill the database, and leave out what no real shop has."""
    with contextlib.closing(Horsies(AppConfig.for_database_url(url))) as app:
        app.broker.ensure_schema_initialized()
    shop = fill(url, hostile=False)
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute("delete from horsies.workers where app <> 'shop' or hostname like 'stale%'")
        sql.execute("update horsies.maintenance_lease set expires_at = now() + interval '1 hour'")
        sql.execute("delete from horsies.error_minutes")  # of these failures there are no tasks
        for minutes in OUTAGE:
            add_outage(sql, datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=minutes))
    return shop


def add_outage(sql: psycopg.Connection, minute: datetime) -> None:
    """A minute in which the bank did not answer."""
    code, message = "BANK_DOWN", "the bank does not answer"
    ids = [
        add_failure(sql, minute + timedelta(seconds=4 * number), "charge", "payments", {"order": number}, code, message)
        for number in range(PER_MINUTE)
    ]
    sql.execute(
        "insert into horsies.error_minutes (minute, task_name, error_code, message, count, first_at, last_at, example_id) "
        "values (%s, 'charge', %s, %s, %s, %s, %s, %s)",
        [minute, code, message, len(ids), minute, minute + timedelta(seconds=4 * len(ids)), ids[-1]],
    )


@contextlib.contextmanager
def serve(url: str) -> Generator[str]:
    """Serve it as `horsies web shop:app`, because findings name the app."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(APPS / "everything.py", Path(folder) / "shop.py")
        web = Program("web", "shop:app", f"--port={port}", env={"HORSIES_DATABASE_URL": url}, cwd=Path(folder))
        try:
            web.wait_for_log("the dashboard is at")
            yield f"http://127.0.0.1:{port}"
        finally:
            web.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
