"""What is to be known of an app before its parts are started. It is loaded in a process of its own: every look sees the code as it is now."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from horsies.child.guard import die_with
from horsies.locate import load_app
from horsies.locate_file import is_own
from horsies.model.database_url import mask_passwords
from horsies.model.errors import HorsiesError


@dataclass(frozen=True, slots=True)
class Survey:
    folders: list[str]
    """Where the code is that the app consists of, the outermost only."""
    database_url: str | None
    """Without its password; None: nothing is configured, the embedded PostgreSQL is wanted."""
    has_schedules: bool


async def survey(app: str) -> Survey | str:
    """Or why the app cannot be loaded."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "horsies.reloader.survey", str(os.getpid()), app),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        process_group=0,
    )
    try:
        answer, trouble = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return Survey(**json.loads(answer))
    return (
        trouble.decode(errors="replace").strip() or f"loading {app} ended the process, with code {process.returncode}"
    )


def outermost(folders: set[Path]) -> list[Path]:
    return sorted(
        folder for folder in folders if not any(folder != other and folder.is_relative_to(other) for other in folders)
    )


def main(parent: str, locator: str) -> None:
    die_with(int(parent))
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the app prints when it is imported is no answer
    try:
        found = _look_at(locator)
    except HorsiesError as error:
        sys.exit(str(error))
    with os.fdopen(answer, "w") as stream:
        json.dump(asdict(found), stream)


def _look_at(locator: str) -> Survey:
    app = load_app(locator)
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    folders = {Path(file).resolve().parent for file in files if file and is_own(str(Path(file).resolve()))}
    return Survey(
        folders=[str(folder) for folder in outermost(folders)],
        database_url=None if app.is_embedded else mask_passwords(app.broker.config.database_url),
        has_schedules=app.config.schedule is not None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
