"""Each budget catches its violation, on small trees made for the purpose."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.budgets import Limits, Violation, check, summary
from tools.walk_page import BEGIN, END, Step, Walk, documented_walks, insert, render

PAGE = f"# How it works\n\n{BEGIN}\n### a task: 2 functions in 1 files\n\n```\nproducer\n  app.py\n      f · g\n```\n{END}\n"
CLEAN = {
    "src/horsies/__init__.py": "",
    "src/horsies/__main__.py": "import horsies.worker\n",
    "src/horsies/app.py": "import horsies.model.task\n\n\ndef f() -> None: ...\n",
    "src/horsies/cli.py": "from horsies import app\nfrom horsies.model import task\n",
    "src/horsies/worker.py": "from horsies.app import f\nimport horsies.cli\n",
    "src/horsies/scheduler.py": "import horsies.worker, horsies.cli\n",
    "src/horsies/model/__init__.py": "",
    "src/horsies/model/task.py": "class Task:\n    pass\n",
    "docs/architecture.md": PAGE,
    "pyproject.toml": '[project.scripts]\nhorsies = "horsies.scheduler:main"\n',
}
LIMITS = Limits(
    modules=20, lines=50, walk_files=1, walk_functions=2, local_imports=0, local_imports_allowed=("cli.py",), seams={}
)


def violations(root: Path, changed: Mapping[str, str], limits: Limits = LIMITS) -> list[Violation]:
    for name, text in {**CLEAN, **changed}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return check(root, limits)


def messages(root: Path, changed: Mapping[str, str], limits: Limits = LIMITS) -> list[str]:
    return [str(found) for found in violations(root, changed, limits)]


def test_a_tree_within_its_budgets_passes(tmp_path: Path) -> None:
    assert messages(tmp_path, {}) == []


def test_too_many_modules_and_too_many_lines_are_reported_together(tmp_path: Path) -> None:
    found = messages(tmp_path, {}, Limits(modules=7, lines=9, walk_files=1, seams={}))
    assert found == [
        "src: 8 modules, at most 7; merge modules that one other module imports [modules]",
        "src: 12 lines of Python, at most 9; inline helpers that are used once [lines]",
    ]


def test_a_task_that_passes_through_too_many_files_is_reported(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, {"docs/architecture.md": PAGE.replace("in 1 files", "in 2 files")})
    assert "a task passes through 2 files, at most 1" in found


def test_a_task_that_enters_too_many_functions_is_reported(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, {"docs/architecture.md": PAGE.replace("2 functions", "3 functions")})
    assert "a task enters 3 functions, at most 2" in found


def test_a_documented_walk_through_a_file_that_is_gone_is_reported(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, {"docs/architecture.md": PAGE.replace("app.py", "old.py")})
    assert "the walk lists old.py, which is gone; run `make walk ARGS=--write`" in found


@pytest.mark.parametrize("page", ["", f"{BEGIN}\n{END}\n", f"{BEGIN}\n{BEGIN}\n{END}\n"])
def test_a_page_without_a_walk_is_reported(tmp_path: Path, page: str) -> None:
    (found,) = violations(tmp_path, {"docs/architecture.md": page})
    assert found.rule == "walk"
    assert "make walk ARGS=--write" in found.message


def test_a_class_name_that_is_used_twice_is_reported(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, {"src/horsies/app.py": "import horsies.model.task\n\nclass Task: ...\nf = 1\n"})
    assert found == (
        "src/horsies/model/task.py:1: class Task is defined at src/horsies/app.py:3 already; choose another name [classes]"
    )


def test_two_branches_may_define_the_same_class(tmp_path: Path) -> None:
    text = "import sys\nif sys.platform == 'linux':\n    class Meter: ...\nelse:\n    class Meter: ...\n"
    assert messages(tmp_path, {"src/horsies/model/task.py": text}) == []


def test_a_module_with_one_importer_is_reported_unless_it_is_a_seam(tmp_path: Path) -> None:
    lone = {"src/horsies/model/__init__.py": "import horsies.model.alone\n", "src/horsies/model/alone.py": ""}
    (found,) = messages(tmp_path, lone)
    assert found.startswith("src/horsies/model/alone.py: only horsies.model imports it; merge it into its importer")
    seams = {"model/alone.py": "a second implementation exists"}
    assert messages(tmp_path, {}, Limits(walk_files=1, local_imports=0, seams=seams)) == []


def test_a_module_that_no_other_imports_is_reported(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, {"src/horsies/model/alone.py": "import horsies.model.alone\n"})
    assert "no module imports it" in found


def test_a_module_with_sql_beside_it_needs_no_second_importer(tmp_path: Path) -> None:
    assert messages(tmp_path, {"src/horsies/model/claim.py": "", "src/horsies/model/claim.sql": "select 1;\n"}) == []


def test_a_seam_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    (found,) = messages(tmp_path, {}, Limits(walk_files=1, seams={"model/gone.py": "was a seam"}))
    assert found == "tools/budgets.py: SEAMS lists model/gone.py, which does not exist; remove it [importers]"


def test_more_imports_inside_functions_than_allowed_are_reported_with_their_places(tmp_path: Path) -> None:
    text = "import horsies.model.task\n\n\ndef f() -> None:\n    from horsies.cli import g\n    import json\n"
    found = messages(tmp_path, {"src/horsies/app.py": text})
    assert found == [
        "src/horsies/app.py:5: imports horsies.cli inside a function; move it to the top of the module [local imports]",
        "src: 1 imports inside functions, at most 0; see above [local imports]",
    ]
    assert messages(tmp_path, {}, Limits(walk_files=1, local_imports=1, seams={})) == []
    (tmp_path / "src/horsies/app.py").write_text(CLEAN["src/horsies/app.py"])
    command = CLEAN["src/horsies/cli.py"] + "\n\ndef g() -> None:\n    import horsies.app\n"
    assert messages(tmp_path, {"src/horsies/cli.py": command}) == []


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("src/horsies/model/task.py", "def _ring_by() -> None: ...\n", "ring"),
        ("src/horsies/model/task.py", "class PumpDone: ...\n", "pump"),
        ("src/horsies/model/task.py", "class Line: ...\n", "line"),
        ("src/horsies/model/task.py", "class Task:\n    def hear_it(self) -> None: ...\n", "hear"),
        ("src/horsies/model/task.py", "limit = {'a': 1}\nprint(limit.TURNS_LEFT)\n", "turns"),
        ("src/horsies/model/task.py", "METRIC = 'horsies_turn_duration_seconds'\n", "turn"),
        ("src/horsies/model/task.py", "# Nobody waits.\n", "nobody"),
        ("src/horsies/model/task.py", 'log = f"worker {1} was told to stop"\n', "told"),
        ("src/horsies/model/task.py", '"""It waits for\n    ever."""\n', "for ever"),
        ("src/horsies/model/task.sql", "select told from nodes;\n", "told"),
        ("src/horsies/model/task.sql", "-- whoever comes first\nselect 1;\n", "whoever"),
        ("docs/worker.md", "The worker starts anew.\n", "anew"),
        ("docs/worker.md", "| `horsies_workers_buried_total` | counter |\n", "buried"),
        ("docs/worker.md", "See `worker/turn.py`.\n", "turn"),
        ("README.md", "A desk for tasks.\n", "desk"),
    ],
)
def test_a_retired_word_is_reported_once_with_its_replacement(tmp_path: Path, name: str, text: str, word: str) -> None:
    (found,) = violations(tmp_path, {name: text})
    assert found.rule == "words"
    assert found.place.startswith(f"{name}:")
    assert found.message.startswith(f"{word!r} in ")
    assert "is retired; use " in found.message


def test_modules_and_folders_may_not_be_named_by_retired_words(tmp_path: Path) -> None:
    changed = {
        "src/horsies/keeper/__init__.py": "import horsies.model.line\n",
        "src/horsies/model/__init__.py": "import horsies.model.line\n",
        "src/horsies/model/line.py": "",
    }
    found = messages(tmp_path, changed)
    assert [message.split(" is retired")[0] for message in found] == [
        "src/horsies/keeper/__init__.py:1: 'keeper' in the module's name",
        "src/horsies/model/line.py:1: 'line' in the module's name",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/horsies/model/task.py", "line = 'a line of text'\nreturned = 'it turns out'\n"),
        ("src/horsies/model/task.py", "class TransactionFrame:\n    def string(self) -> None: ...\n"),
        ("src/horsies/model/task.py", "user = 'nobody'\n"),
        ("src/horsies/model/task.sql", "-- it is your turn\nselect returning, line;\n"),
        ("docs/worker.md", "Book a seat, buy a ticket, turn it on, and answer the door in the living room.\n"),
    ],
)
def test_ordinary_words_are_left_alone(tmp_path: Path, name: str, text: str) -> None:
    assert messages(tmp_path, {name: text}) == []


def test_the_summary_has_the_numbers_and_the_rules_that_are_broken(tmp_path: Path) -> None:
    found = violations(tmp_path, {"docs/architecture.md": PAGE.replace("in 1 files", "in 2 files")})
    assert summary(tmp_path, found, LIMITS) == (
        "budgets: 8 of 20 modules, 12 of 50 lines, 2 of 1 files in a task's walk, 2 of 2 functions in it, 0 of 0 local imports; "
        "1 violations (walk: 1)"
    )


def test_a_written_walk_is_read_back() -> None:
    task = Walk("task", "a task", (Step("producer", "a.py", "f"), Step("worker child", "b.py", "g")))
    tick = Walk("tick", "a tick", (Step("producer", "a.py", "f"), Step("worker parent", "c.py", "h")))
    page = insert(f"before\n{BEGIN}\nold\n{END}\nafter\n", render([task, tick]))
    first, second = documented_walks(page)
    assert (first.title, first.function_count, first.file_count, first.listed_files) == (
        "a task",
        2,
        2,
        ("a.py", "b.py"),
    )
    assert (second.title, second.function_count, second.listed_files) == ("a tick", 2, ("c.py",))
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert insert(page, render([task, tick])) == page
