"""What is published: the wheel's description and metadata, and the files of the source distribution."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from email import message_from_bytes
from email.message import Message
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = "https://horsies.example/docs"
TARGET = re.compile(r"\]\(([^)\s]+)\)")


def build(source: Path, kind: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=50, check=False)
    assert built.returncode == 0, built.stderr
    (file,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def description(published: Message) -> str:
    text = published.get_payload()
    assert isinstance(text, str)
    return text


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the wheel is built from, with an address of the documentation."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "src" / "horsies" / "model", tree / "src" / "horsies" / "model")
    for name in ("README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, tree)
    text = (ROOT / "pyproject.toml").read_text().replace('documentation = ""', f'documentation = "{HOME}/"')
    (tree / "pyproject.toml").write_text(text)
    return tree


def test_the_description_of_the_wheel_has_no_relative_links(tmp_path: Path) -> None:
    published = metadata(build(ROOT, "wheel", tmp_path))
    text = description(published)
    assert [target for target in TARGET.findall(text) if not target.startswith("https://")] == []
    assert "tasks and results (`docs/tasks.md`)" in text
    assert "pip download" in text
    assert "<!--" not in text
    assert published["Project-URL"] is None  # there is no address yet, and none is invented
    assert published["Author"] == "The horsies maintainers"
    assert published["License-Expression"] == "Apache-2.0"
    assert "Framework :: Django" in published.get_all("Classifier", [])
    assert published["Description-Content-Type"] == "text/markdown"


def test_with_an_address_all_links_of_the_wheel_lead_to_pages_of_the_site(tree: Path, tmp_path: Path) -> None:
    published = metadata(build(tree, "wheel", tmp_path))
    targets = TARGET.findall(description(published))
    ours = [target.removeprefix(f"{HOME}/") for target in targets if target.startswith(HOME)]
    assert len(ours) > 30
    assert [target for target in targets if not target.startswith("https://")] == []
    for target in ours:
        page = target.partition("#")[0].replace("index.html", "README.html" if "decisions" in target else "index.html")
        names = [ROOT / "docs" / page.replace(".html", ".md"), ROOT / page.upper().replace(".HTML", ".md")]
        assert any(name.exists() for name in names), target
    assert published.get_all("Project-URL") == [
        f"Documentation, {HOME}/index.html",
        f"Changelog, {HOME}/changelog.html",
    ]


def test_a_wheel_installed_from_a_plain_index_shows_its_links(tree: Path, tmp_path: Path) -> None:
    """An index as pip needs it: a folder for each project, with its files in it."""
    pytest.importorskip("pip", reason="uv makes environments without pip")
    wheel = build(tree, "wheel", tmp_path)
    index = tmp_path / "simple" / "horsies"
    index.mkdir(parents=True)
    wheel.rename(index / wheel.name)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, name="index")
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
        pip("install", "--no-deps", f"--index-url={url}", f"--target={tmp_path / 'site'}", "horsies")
        server.shutdown()
        thread.join()
    (installed,) = (tmp_path / "site").glob("*.dist-info")
    published = message_from_bytes((installed / "METADATA").read_bytes())
    assert published["Name"] == "horsies"
    assert f"Documentation, {HOME}/index.html" in published.get_all("Project-URL", [])
    assert f"]({HOME}/tutorial.html)" in description(published)
    shown = pip("show", "--verbose", "horsies", env={"PYTHONPATH": str(tmp_path / "site")})
    assert f"  Changelog, {HOME}/changelog.html" in shown.splitlines()


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the parameter there
        """Print nothing."""


def pip(*words: str, env: dict[str, str] | None = None) -> str:
    """Run pip without the configuration of this machine."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    ran = subprocess.run(
        command,
        env=cleared | {"PIP_CONFIG_FILE": os.devnull} | (env or {}),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_source_distribution_has_the_documentation_and_builds_the_same_wheel(tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, "sdist", tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    wanted = [path for name in ("docs", "examples", "deploy") for path in (ROOT / name).rglob("*") if path.is_file()]
    names = [path.relative_to(ROOT) for path in wanted if "__pycache__" not in path.parts]
    assert len(names) > 80
    assert [name for name in names if not (source / name).exists()] == []
    again = metadata(build(source, "wheel", tmp_path / "again"))
    assert description(again) == description(metadata(build(ROOT, "wheel", tmp_path / "first")))
