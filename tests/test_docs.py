"""The pages for users know everything that users can meet."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

import horsies
from horsies.cli.worker import worker as command
from horsies.doctor.findings import FindingCode
from horsies.model import error_codes

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<cause>[^|]+) \| (?P<fix>[^|]+) \|$", re.MULTILINE)

FAMILIES = [
    value
    for value in vars(error_codes).values()
    if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
]
CODES = [code.value for family in FAMILIES for code in family]
EXCEPTIONS = [
    name
    for name in horsies.__all__
    if isinstance(value := getattr(horsies, name), type) and issubclass(value, BaseException)
]


def rows() -> dict[str, re.Match[str]]:
    return {row["name"]: row for row in ROW.finditer((DOCS / "errors.md").read_text())}


@pytest.mark.parametrize("name", [*CODES, *EXCEPTIONS])
def test_every_error_code_and_every_exception_has_its_cause_and_its_fix(name: str) -> None:
    row = rows()[name]
    assert row["cause"].strip()
    assert row["fix"].strip()


def test_no_error_is_explained_that_does_not_exist() -> None:
    assert rows().keys() == {*CODES, *EXCEPTIONS}


def test_every_family_of_codes_has_its_table() -> None:
    text = (DOCS / "errors.md").read_text()
    families = [value.__name__ for value in FAMILIES]
    assert all(f"### `{family}`" in text for family in families)


FINDING = re.compile(r"^\| `([A-Z_]+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def test_every_finding_of_the_doctor_is_documented_with_the_same_text() -> None:
    findings = FINDING.findall((DOCS / "doctor.md").read_text())
    documented = [(name, severity, fix) for name, severity, _meaning, fix in findings]
    defined = [(code.name, code.value.severity.word, code.value.fix) for code in FindingCode]
    assert documented == defined
    assert all(meaning.endswith(".") for _name, _severity, meaning, _fix in findings)


ROOT = DOCS.parent
PAGES = [*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
LINK = re.compile(r"\]\((?P<page>[^)#:]*)(?:#(?P<heading>[^)]*))?\)")


def headings(page: Path) -> set[str]:
    """As a link names them: lower case, without punctuation, with dashes for spaces."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_page_or_a_part_of_it_leads_there(page: Path) -> None:
    astray = [
        link[0]
        for link in LINK.finditer(page.read_text())
        if not (to := page.parent / link["page"] if link["page"] else page).exists()
        or (link["heading"] and link["heading"] not in headings(to))
    ]
    assert astray == []


def test_every_image_is_shown_on_a_page_and_says_what_it_shows() -> None:
    """That a link to an image leads there is tested above, unless it is HTML."""
    shown: set[Path] = set()
    for page in PAGES:
        text = page.read_text()
        html = re.findall(r'<img src="([^"]+)" alt="[^"]+"', text)
        assert len(html) == text.count("<img ")
        shown |= {(page.parent / path).resolve() for path in (*html, *re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text))}
    assert shown == {path for path in DOCS.rglob("*") if path.suffix in {".png", ".svg"}}


def test_every_installation_brings_libpq_or_says_what_does() -> None:
    installed = [
        (page.name, set(extras.split(",")))
        for page in PAGES
        for line in re.findall(r"^\$ pip install .*$", page.read_text(), re.MULTILINE)
        for extras in re.findall(r"horsies(?:\[([\w,]+)\])?", line)
    ]
    assert len(installed) > 5
    assert [found for found in installed if not found[1] & {"binary", "dev", "embedded"}] == []


# -- configuration

CONFIGS = [
    horsies.AppConfig,
    horsies.PostgresConfig,
    horsies.CustomQueueConfig,
    horsies.WorkerResilienceConfig,
    horsies.RecoveryConfig,
    horsies.RetentionConfig,
    horsies.WorkerConfig,
    horsies.TaskSchedule,
]
NEEDED: dict[Any, dict[str, Any]] = {
    horsies.PostgresConfig: {"database_url": "postgresql://"},
    horsies.CustomQueueConfig: {"name": "email"},
    horsies.TaskSchedule: {"name": "poll", "task_name": "poll", "pattern": horsies.HourlySchedule()},
}


def part(page: str, heading: str) -> str:
    """From this heading to the next of its rank, or a higher one."""
    _, mark, rest = (DOCS / page).read_text().partition(f"{heading}\n")
    assert mark, f"{page} has no {heading!r}"
    rank = heading.index(" ")
    return re.split(rf"^#{{2,{rank}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def default_text(default: object) -> str:
    """As the page writes a default."""
    match default:
        case str() if not isinstance(default, StrEnum):
            return f'"{default}"'
        case int() if not isinstance(default, bool):
            return f"{default:_}"
        case Mapping():
            return "{}"
        case timedelta():
            minutes = default // timedelta(minutes=1)
            return f"timedelta(days={default.days})" if default.days else f"timedelta(minutes={minutes})"
        case _ if is_dataclass(default):
            return f"{type(default).__name__}()"
        case _:
            return str(default)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_setting_is_explained_with_its_default(config: Any) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|(.*?)\| .+ \|$", part("configuration.md", f"## `{config.__name__}`"), re.MULTILINE
    )
    needed = NEEDED.get(config, {})
    made = config(**needed)
    defaults = {each.name: f"`{default_text(getattr(made, each.name))}`" for each in fields(config)}
    defaults |= dict.fromkeys(needed, "") | ({"processes": "the CPUs"} if config is horsies.WorkerConfig else {})
    assert {name: default.strip() for name, default in rows} == defaults


SHOWN = {
    "results.md": [horsies.TaskInfo, horsies.FailedAttempt],
    "worker.md": [horsies.WorkerState],
    "tasks.md": [horsies.CurrentTask],
}


@pytest.mark.parametrize("page", SHOWN)
def test_every_field_that_users_can_read_is_explained(page: str) -> None:
    text = (DOCS / page).read_text()
    names = {each.name for kind in SHOWN[page] for each in fields(kind) if each.repr}
    assert {name for name in names if f"`{name}`" not in text} == set()


@pytest.mark.parametrize("word", [*horsies.CancelOutcome.__members__, *horsies.TaskStatus.__members__])
def test_every_word_for_what_became_of_a_task_is_explained(word: str) -> None:
    assert f"`{word}`" in (DOCS / "results.md").read_text()


# -- sizing


@pytest.mark.promise("T6")
def test_the_worked_example_of_the_sizing_formula_is_right() -> None:
    text = " ".join(part("concurrency.md", "### Choosing M").split())
    text = text.replace("\N{MULTIPLICATION SIGN}", "*").replace("\N{MINUS SIGN}", "-")
    assert "(M + peak of a task) * (processes + 1) + parent + margin < quota" in text
    given = re.search(
        r"(\d+) GB quota, (\d+) processes, tasks that peak at (\d+) MB, (\d+) MB for the parent, (\d+) MB of margin",
        text,
    )
    assert given is not None
    quota_gb, processes, peak, parent, margin = map(int, given.groups())
    quota = 1024 * quota_gb

    def most(count: int) -> float:
        return (quota - parent - margin) / (count + 1) - peak

    assert f"({quota} - {parent} - {margin}) / {processes + 1} - {peak} ≈ {round(most(processes), -1):.0f}" in text
    advised = re.search(r"--max-memory-per-child-mb=(\d+)", text)
    assert advised is not None
    assert most(processes) - 20 <= int(advised[1]) < most(processes)
    fewer = re.search(r"With (\d+) processes the same quota leaves (\d+) MB", text)
    assert fewer is not None
    assert int(fewer[2]) == round(most(int(fewer[1])), -1)


@pytest.mark.promise("T6")
@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("### Choosing N", ["one start of your app", "highest N"]),
        (
            "### Which of the two",
            ["Memory", "Count", "Both together", "--max-tasks-per-child=0 --max-memory-per-child-mb="],
        ),
        ("## Examples", ["CustomQueueConfig(", "cluster_wide_cap=", "--concurrency=", "--queues="]),
        ("## Troubleshooting", ["Tasks are not claimed", "others idle", "database is overloaded"]),
    ],
)
def test_operators_find_how_to_size_choose_configure_and_look_for_trouble(heading: str, words: list[str]) -> None:
    text = part("concurrency.md", heading)
    assert [word for word in words if word not in text] == []


@pytest.mark.promise("T6")
def test_the_commands_of_the_example_configurations_are_accepted() -> None:
    flags = re.findall(r"^# horsies worker \S+ (.+)$", part("concurrency.md", "## Examples"), re.MULTILINE)
    assert len(flags) == 3
    for line in flags:
        command.make_context("worker", ["shop:app", *line.split()])


@pytest.mark.promise("T4")
def test_the_example_of_schedules_is_accepted() -> None:
    code, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "schedules.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own page
    assert len(names["app"].config.schedule.schedules) == 3
