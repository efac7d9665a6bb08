"""The Python snippets of the docs pass both type checkers in strict mode.

A snippet that is not complete has its other lines in an HTML comment before it: `<!-- setup`, the lines, `-->`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SNIPPET = re.compile(r"(?:<!-- setup\n(?P<setup>.*?)-->\n+)?^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
# Pages whose snippets are not complete yet. A page that is not listed here must pass.
INCOMPLETE = {
    "concurrency.md",
    "configuration.md",
    "dashboard.md",
    "django.md",
    "doctor.md",
    "errors.md",
    "from-celery.md",
    "logging.md",
    "monitoring.md",
    "ops.md",
    "payloads.md",
    "pooler.md",
    "recovery.md",
    "results.md",
    "sending.md",
    "tasks.md",
    "testing.md",
    "transactions.md",
    "worker.md",
    "workflows.md",
}


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one module for each snippet, named after its page."""
    folder = tmp_path_factory.mktemp("snippets")
    for page in sorted(DOCS.glob("*.md")):
        if page.name not in INCOMPLETE:
            for number, found in enumerate(SNIPPET.finditer(page.read_text()), 1):
                name = f"{page.stem.replace('-', '_')}_{number}.py"
                (folder / name).write_text((found["setup"] or "") + found["code"])
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT / "src")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    return folder


def run(*words: str | Path, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_every_snippet_passes_pyright(snippets: Path) -> None:
    assert run("pyright", "--pythonpath", sys.executable, ".", folder=snippets) == ""


@pytest.mark.timeout(300)
def test_every_snippet_passes_mypy(snippets: Path) -> None:
    assert run("mypy", "--strict", "--config-file=", "--cache-dir", str(snippets / "cache"), ".", folder=snippets) == ""


def test_no_page_is_left_out_that_has_no_snippets() -> None:
    assert {name for name in INCOMPLETE if "```python" not in (DOCS / name).read_text()} == set()
