"""The Python snippets of the docs and of README.md run, and pass both type checkers in strict mode.

A snippet that is not complete has its other lines in HTML comments: `<!-- setup`, lines, `-->` before it, and `<!-- run`, lines, `-->`
after it, which use what it defines and check what the page says. Each is a module, run by a new interpreter in a folder of its own.
The snippets of a page share a database, whose URL is $DATABASE_URL. `<!-- file NAME`, lines, `-->` is a file that snippets of the page
import; if several pages have it, it is the same.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SNIPPET = re.compile(
    r"(?:<!-- setup\n(?P<setup>.*?)-->\n+)?^```python\n(?P<code>.*?)^```\n(?:\n*<!-- run\n(?P<run>.*?)-->)?",
    re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"^<!-- file (?P<name>\S+)\n(?P<text>.*?)-->", re.DOTALL | re.MULTILINE)
# Pages whose snippets other tests run.
RUN_ELSEWHERE = {
    "README.md": "test_quick_start.py",
    "around.md": "test_around_recipes.py",
    "fastapi.md": "test_fastapi_page.py",
    "pooler.md": "pooler/test_page.py",
    "tutorial.md": "test_tutorial.py",
}


def modules_of(page: Path) -> dict[str, str]:
    """The name and the text of a module for each snippet of the page."""
    return {
        f"{page.stem.replace('-', '_')}_{number}": "".join(found[part] or "" for part in ("setup", "code", "run"))
        for number, found in enumerate(SNIPPET.finditer(page.read_text()), 1)
    }


def save_files(page: Path, folder: Path) -> None:
    """Save the files that the snippets of the page import."""
    for found in FILE.finditer(page.read_text()):
        package, file = (folder / found["name"]).parent, folder / found["name"]
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        assert not file.exists() or file.read_text() == found["text"]
        file.write_text(found["text"])


def complete_pages() -> list[Path]:
    pages = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    return [page for page in pages if modules_of(page)]


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module for each snippet of each page."""
    folder = tmp_path_factory.mktemp("snippets")
    for page in complete_pages():
        for name, text in modules_of(page).items():
            (folder / f"{name}.py").write_text(text)
        save_files(page, folder)
    return folder


def run(*words: str | Path, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def check_types(folder: Path, *checkers: str) -> None:
    """Run type checkers in strict mode over the files of a folder: these, or both."""
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT / "src")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    commands = {
        "pyright": ["--pythonpath", sys.executable],
        "mypy": ["--strict", "--config-file=", f"--cache-dir={folder / 'cache'}"],
    }
    for checker in checkers or commands:
        assert run(checker, *commands[checker], ".", folder=folder) == ""


@pytest.mark.timeout(300)
def test_every_snippet_passes_pyright(snippets: Path) -> None:
    check_types(snippets, "pyright")


@pytest.mark.timeout(300)
def test_every_snippet_passes_mypy(snippets: Path) -> None:
    check_types(snippets, "mypy")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "page", [page for page in complete_pages() if page.name not in RUN_ELSEWHERE], ids=lambda page: page.name
)
def test_every_snippet_of_a_page_runs(page: Path, database: str, tmp_path: Path) -> None:
    for name, text in modules_of(page).items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(text)
        save_files(page, folder)
        done = subprocess.run(
            [sys.executable, f"{name}.py"],
            cwd=folder,
            env={**os.environ, "DATABASE_URL": database},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}:\n{done.stdout}{done.stderr}"


def test_the_pages_that_other_tests_run_are_named_there() -> None:
    for page, test in RUN_ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text()
