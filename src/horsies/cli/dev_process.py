"""What the child processes of `horsies dev` and `horsies worker --reload` run.

`python -m horsies.cli.dev_process PID run COMMAND ...` runs a `horsies` command. `python -m horsies.cli.dev_process PID survey APP` loads the app
and prints an `AppSurvey` as JSON. Both are killed when their parent, the process PID, dies.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from horsies.cli.main import main
from horsies.executor.os_process import die_with_parent
from horsies.locate import is_user_code, load_app
from horsies.logs import line_buffer_stdout
from horsies.model.database_url import mask_passwords
from horsies.model.errors import HorsiesError


@dataclass(frozen=True, slots=True)
class AppSurvey:
    """What the reloader must know about an app before it starts its commands."""

    folders: list[str]
    """The folders of the app's own code, only the outermost."""
    database_url: str | None
    """Without its password. None: no database is configured, so the embedded PostgreSQL is used."""
    has_schedules: bool


def child_command(action: str, *arguments: str) -> list[str]:
    """Return the command line of a child process of this process."""
    return [sys.executable, "-m", "horsies.cli.dev_process", str(os.getpid()), action, *arguments]


def outermost(folders: set[Path]) -> list[Path]:
    """Leave out folders that are inside others."""
    return sorted(
        folder for folder in folders if not any(folder != other and folder.is_relative_to(other) for other in folders)
    )


def _print_survey(locator: str) -> None:
    output = os.dup(sys.stdout.fileno())
    # What the app prints while it is imported must not mix with the JSON.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        app = load_app(locator)
        database_url = None if app.is_embedded else mask_passwords(app.broker.config.database_url)
    except HorsiesError as error:
        sys.exit(str(error))
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    folders = {Path(file).resolve().parent for file in files if file and is_user_code(str(Path(file).resolve()))}
    survey = AppSurvey([str(folder) for folder in outermost(folders)], database_url, app.config.schedule is not None)
    with os.fdopen(output, "w") as stream:
        json.dump(asdict(survey), stream)


if __name__ == "__main__":
    parent, action, *arguments = sys.argv[1:]
    die_with_parent(int(parent))
    if action == "survey":
        _print_survey(*arguments)
    else:
        line_buffer_stdout()
        main(arguments, prog_name="horsies")
