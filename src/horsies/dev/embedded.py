"""The PostgreSQL of a project in development: one call, and every process of the project meets in one database.

The data are in the user's data folder, keyed by the project's root, so that a producer and a worker started anywhere
inside the project find each other. `HORSIES_EMBEDDED_DIR` names another folder. The server runs while somebody uses it.
"""

import hashlib
import os
import re
import sys
from pathlib import Path

from horsies.dev.errors import EmbeddedPostgresError

_ROOT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_PLATFORMS = ("linux", "darwin")
_SYSTEM_FOLDER = Path("/var/lib/horsies")


def embedded_database_url() -> str:
    """Start or join the project's server, use it until this process exits, and return its URL."""
    if sys.platform not in _PLATFORMS:
        raise EmbeddedPostgresError(
            f"embedded PostgreSQL: it runs on Linux and macOS, not on {sys.platform}: "
            "set HORSIES_DATABASE_URL to a PostgreSQL of your own"
        )
    from horsies.dev.shared import hold  # noqa: PLC0415 - its modules do not exist on other platforms

    return hold(embedded_folder())


def embedded_folder() -> Path:
    """Where the server of the current project keeps its data."""
    if override := os.environ.get("HORSIES_EMBEDDED_DIR"):
        return Path(override).expanduser().resolve()
    root = _project_root()
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", root.name)[:24].strip("-") or "project"
    return _data_home() / f"{name}-{digest}"


def _project_root() -> Path:
    """The nearest folder that looks like a project's root, else the current one."""
    try:
        here = Path.cwd().resolve()
    except FileNotFoundError as error:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: the current folder was deleted: change to another, or set HORSIES_EMBEDDED_DIR"
        ) from error
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in _ROOT_MARKS):
            return folder
    return here


def _data_home() -> Path:
    if os.geteuid() == 0:  # the server runs as another user then, who cannot enter root's home
        return _SYSTEM_FOLDER
    chosen = os.environ.get("XDG_DATA_HOME", "")
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "horsies"
    if Path(chosen).is_absolute():
        return Path(chosen) / "horsies"
    return _home() / ".local" / "share" / "horsies"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: this user has no home folder: set HORSIES_EMBEDDED_DIR"
        ) from error
