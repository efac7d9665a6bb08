"""The documentation site: `make docs` builds it without a warning, and nothing in it is loaded from elsewhere."""

import fcntl
import importlib
import inspect
import json
import re
import subprocess
from enum import Enum
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.async_api import Browser

import horsies
from tests.fixtures.browsers import PageErrors
from tools.docs import build, list_versions
from tools.docs_hooks import PAGES, docstring, links, rewrite_links, slug

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
PUBLIC = {
    "horsies": None,
    "horsies.ops": None,
    "horsies.testing": None,
    "horsies.web": ["Role", "User"],
    "horsies.web.dashboard": ["dashboard"],  # `horsies.web.dashboard` names the module as well
    "horsies.contrib.asgi": ["lifespan"],
    "horsies.contrib.otel": ["instrument"],
    "horsies.contrib.prometheus": ["exposition", "instrument"],
}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The site, built once in a run, with every warning an error."""
    if worker_id == "master":
        build(tmp_path_factory.mktemp("site"))
        return tmp_path_factory.getbasetemp() / "site0"
    shared = tmp_path_factory.getbasetemp().parent / "site"
    with (shared.parent / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "llms.txt").exists():
            build(shared)
    return shared


def public_objects() -> dict[str, Any]:
    modules = {importlib.import_module(name): names for name, names in PUBLIC.items()}
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module, names in modules.items()
        for name in (module.__all__ if names is None else names)
    }


class Addresses(HTMLParser):
    """What a page loads by itself, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "a":
            self.linked.append(values.get("href", ""))
        elif tag == "link" and values.get("rel") in {"canonical", "next", "prev"}:
            pass
        else:
            self.loaded += [values[name] for name in ("src", "href", "srcset", "data") if name in values]


def read(page: Path) -> Addresses:
    found = Addresses()
    found.feed(page.read_text())
    return found


# -- what is built


@pytest.mark.timeout(300)
def test_a_page_loads_nothing_from_elsewhere_and_all_its_links_lead_somewhere(site: Path) -> None:
    pages = {page: read(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 60
    for page, found in pages.items():
        assert [address for address in found.loaded if re.match(r"[a-z]+:|//", address)] == [], page
        for address in [*found.loaded, *found.linked]:
            path, _, heading = address.partition("#")
            if re.match(r"[a-z]+:", address):
                continue
            target = (page.parent / unquote(path)).resolve() if path else page
            assert target.exists(), f"{page}: {address}"
            assert not heading or target not in pages or heading in pages[target].ids, f"{page}: {address}"
    sheets = "".join(sheet.read_text() for sheet in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)", sheets) == []


@pytest.mark.timeout(300)
def test_llms_txt_lists_every_page_with_its_text_beside_it(site: Path) -> None:
    listing = (site / "llms.txt").read_text()
    assert listing.startswith("# horsies ")
    assert listing.splitlines()[2].startswith("> ")
    entries = dict(re.findall(r"^- \[[^\]]+\]\(([^)]+)\): (.+)$", listing, re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} | set(PAGES.values())
    assert entries.keys() == pages
    assert {page: sentence for page, sentence in entries.items() if len(sentence.split()) < 3} == {}
    full = (site / "llms-full.txt").read_text()
    for page in entries:
        assert (site / page).read_text().strip() in full


@pytest.mark.timeout(300)
def test_llms_full_txt_has_the_text_of_every_docstring(site: Path) -> None:
    full = (site / "llms-full.txt").read_text()
    for name, thing in public_objects().items():
        assert f"\n## `{name}`\n" in full
        assert description(name, thing).splitlines()[0] in full, name
    assert "COMPLETED = 'COMPLETED'" in full
    of_an_app = full.partition("\n## `horsies.Horsies`\n")[2].partition("\n## ")[0]
    assert of_an_app.index("### `task`") < of_an_app.index("### `ops`")
    assert "### `child_stop_hooks`" not in of_an_app


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_the_search_works_in_a_folder_without_a_server(site: Path, chromium: Browser) -> None:
    errors = PageErrors()
    context = await chromium.new_context(offline=True)
    errors.watch(context)
    page = await context.new_page()
    await page.goto((site / "index.html").as_uri())
    field = page.locator("input[name=query]")
    await field.click()
    await field.press_sequentially("watermark")
    found = page.locator(".md-search-result__item").first
    await found.wait_for()
    assert "watermark" in (await found.inner_text()).lower()
    for words, where, heading in (
        ("retry policy", "/reference/tasks.html", "#horsies.RetryPolicy"),
        ("idempotency", "/sending.html", "#idempotency-keys"),
        ("TASK_NOT_FOUND", "/reference/errors.html", "#horsies.RetrievalCode.TASK_NOT_FOUND"),
        ("transaction", "/transactions.html", "#which-connections"),
        ("kubernetes", "/kubernetes.html", "#install"),
    ):
        await field.fill("")
        await field.press_sequentially(words)
        first_three = page.locator(f".md-search-result__item:nth-child(-n+3) a[href*='{where}'][href$='{heading}']")
        await first_three.first.wait_for(state="attached")  # more of a page are folded
    await context.close()
    assert errors.unexpected == []


# -- what must be in the pages


def test_the_reference_has_every_public_name_once() -> None:
    documented = [name for page in REFERENCE.glob("*.md") for name in DIRECTIVE.findall(page.read_text())]
    assert sorted(documented) == sorted(public_objects())


def test_the_reference_of_an_app_has_all_of_its_methods() -> None:
    """They are listed there, because an app has attributes for the rest of the library as well."""
    page = (REFERENCE / "app.md").read_text()
    listed = re.findall(r"^ {8}- (\w+)$", page.partition("::: horsies.Worker\n")[0], re.MULTILINE)
    methods = [name for name in dir(horsies.Horsies) if callable(getattr(horsies.Horsies, name)) and name[0] != "_"]
    assert sorted(set(listed) - {"broker", "is_embedded", "name", "ops", "tasks"}) == sorted(methods)


@pytest.mark.parametrize("name", public_objects())
def test_every_public_name_and_method_has_a_docstring(name: str) -> None:
    thing = public_objects()[name]
    assert len(description(name, thing)) > 10
    if inspect.isclass(thing):
        methods = [
            method
            for kind in thing.__mro__
            if kind.__module__.startswith("horsies.") and not issubclass(thing, Enum)
            for method, value in vars(kind).items()
            if not method.startswith("_") and (callable(value) or isinstance(value, property | classmethod))
        ]
        assert [method for method in methods if len(inspect.getdoc(getattr(thing, method)) or "") <= 10] == []


def description(name: str, thing: Any) -> str:
    """Its docstring; that of an alias or a constant is the text below it. A dataclass without one has its signature instead, which describes nothing."""
    if not inspect.isclass(thing) and not inspect.isroutine(thing):
        found = docstring(name, ROOT / "src")
        return "" if found is None else found
    text = inspect.getdoc(thing) or ""
    return "" if text.startswith(f"{thing.__name__}(") else text


# -- links


def test_links_to_files_outside_the_docs_lead_to_their_pages() -> None:
    text = (
        "[a](../examples/demo.py) [b](sending.md#one-call) [c](../CHANGELOG.md) [d](#here) [e](https://x.example/y.md)"
    )
    assert rewrite_links(text, "tasks.md") == (
        "[a](source/examples/demo.py.md) [b](sending.md#one-call) [c](changelog.md) [d](#here) [e](https://x.example/y.md)"
    )
    assert rewrite_links("[a](docs/tasks.md) [b](LICENSE)", "index.md") == "[a](tasks.md) [b](source/LICENSE.md)"
    assert rewrite_links("[a](../../README.md)", "decisions/0001-x.md") == "[a](../index.md)"


def test_links_in_blocks_of_code_stay() -> None:
    text = "```\n[a](../examples/demo.py)\n```\n[b](../examples/demo.py)"
    assert [link[0] for link in links(text)] == ["../examples/demo.py"]
    assert rewrite_links(text, "tasks.md").splitlines()[1] == "[a](../examples/demo.py)"


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("One call", "one-call"),
        ("`get()`, and waiting", "get-and-waiting"),
        ("A / B", "a--b"),
        ("<code>x_y</code>", "x_y"),
    ],
)
def test_headings_are_named_as_where_the_repository_is_browsed(heading: str, anchor: str) -> None:
    assert slug(heading, "-") == anchor


# -- versions


def test_versions_are_listed_newest_first_and_keep_their_titles(tmp_path: Path) -> None:
    for name in ("0.9", "0.10", "assets"):
        (tmp_path / name).mkdir()
    list_versions(tmp_path, {"0.9": "0.9.4"})
    list_versions(tmp_path, {"0.10": "0.10.0"})
    assert json.loads((tmp_path / "versions.json").read_text()) == [
        {"version": "0.10", "title": "0.10.0", "aliases": ["latest"]},
        {"version": "0.9", "title": "0.9.4", "aliases": []},
    ]
    assert "url=0.10/index.html" in (tmp_path / "index.html").read_text()


# -- a build that must fail


def build_copy(folder: Path, line: str, nav: str) -> None:
    """Build a site of two pages, one of which has this line."""
    (folder / "docs" / "assets").mkdir(parents=True)
    (folder / "docs" / "sending.md").write_text(f"# Page\n\nA page with a sentence.\n\n## One call\n\n{line}\n")
    for page in PAGES:
        (folder / page).write_text("# Page\n\nA page with a sentence.\n")
    (folder / "src").symlink_to(ROOT / "src")
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    config = config.replace("tools/docs_hooks.py", str(ROOT / "tools" / "docs_hooks.py"))
    (folder / "mkdocs.yml").write_text(f"{config}\nnav: [index.md, changelog.md, contributing.md{nav}]\n")
    build(folder / "site", folder / "mkdocs.yml")


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[dead](nowhere.md)", "nowhere.md"),
        ("[dead](#nowhere)", "#nowhere"),
        ("[dead](../nowhere.py)", "nowhere.py"),
        ("::: horsies.Nothing", "horsies.Nothing"),
    ],
)
def test_a_dead_link_or_an_unknown_name_fails_the_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build_copy(tmp_path, line, ", sending.md")
    assert said in capfd.readouterr().err


@pytest.mark.timeout(150)
def test_a_page_that_is_not_in_the_navigation_fails_the_build(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build_copy(tmp_path, "[live](#one-call)", "")
    assert "sending.md" in capfd.readouterr().err


@pytest.mark.timeout(150)
def test_live_links_and_known_names_pass(tmp_path: Path) -> None:
    build_copy(tmp_path, "[live](#one-call) [source](../src/horsies/logs.py)\n\n::: horsies.Ok", ", sending.md")
    assert (tmp_path / "site" / "source" / "src" / "horsies" / "logs.py.html").exists()
