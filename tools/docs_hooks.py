"""What `make docs` adds to MkDocs: pages from outside docs/, links between them, and `llms.txt`.

- README.md is the first page, and CHANGELOG.md and CONTRIBUTING.md are pages too. Other files of the repository that pages link to, such as examples,
  become pages with their source. All links of a page are written as the repository has them, so that they work there as well.
- `llms.txt` lists all pages with their first sentences, and `llms-full.txt` has their text, with the docstrings of the API.
- In `nav`, `decisions/*.md` stands for all pages of that folder.
"""

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, cast

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

from tools.docs import SELECTOR

DOCS: Final = "docs"
PAGES: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# By the search: guides first, then the API, then background.
BOOSTS: Final = {
    "changelog": 0.2,
    "contributing": 0.2,
    "decisions/": 0.2,
    "measurements/": 0.2,
    "source/": 0.1,
    "reference/": 0.5,
}
ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|#")  # another site, or this page
LANGUAGES: Final = {
    ".py": "python",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".sql": "sql",
    ".toml": "toml",
    ".sh": "bash",
}

_LINK: Final = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
_FENCE: Final = re.compile(r"^ *```.*?^ *``` *$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"^<!--.*?-->\n*", re.MULTILINE | re.DOTALL)  # such as the setup of a snippet, for tests
_DIRECTIVE: Final = re.compile(r"^::: (\S+)\n(?: {4}.*\n|\n(?= {4}))*", re.MULTILINE)


def slug(heading: str, separator: str) -> str:
    """Name a heading as it is named where the repository is browsed: lower case, no punctuation, dashes for spaces."""
    text = re.sub(r"<[^>]+>", "", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def links(markdown: str) -> Iterator[re.Match[str]]:
    """Yield the links of a page; what is in a block of code is not a link."""
    code = [block.span() for block in _FENCE.finditer(markdown)]
    for link in _LINK.finditer(markdown):
        if not any(start <= link.start() < end for start, end in code):
            yield link


# -- pages from elsewhere


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _expanded(cast("list[Any]", config["nav"]), Path(config.docs_dir))
    config.site_name = f"horsies {version('horsies')}"
    if os.environ.get(SELECTOR):
        config.extra["version"] = {"provider": "mike"}  # the pages read ../versions.json
    return config


def _expanded(nav: list[Any], docs: Path) -> list[Any]:
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            pages = sorted(path.relative_to(docs).as_posix() for path in docs.glob(entry))
            found += sorted(pages, key=lambda page: not page.endswith("/README.md"))
        elif isinstance(entry, dict):
            found.append(
                {
                    title: _expanded(cast("list[Any]", inside), docs) if isinstance(inside, list) else inside
                    for title, inside in cast("Mapping[str, Any]", entry).items()
                }
            )
        else:
            found.append(entry)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = _root(config)
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(root / path)))
    for path in sorted(_linked_sources(root, files)):
        files.append(File.generated(config, _site_uri(path), content=_source_page(root, path)))
    return files


def _linked_sources(root: Path, files: Files) -> set[str]:
    """Return the files and folders of the repository that pages link to, and what is in such folders."""
    found: set[str] = set()
    for file in files.documentation_pages():
        for link in links(file.content_string):
            path = _repository_path(link[0], file.src_uri)
            if path is not None and not path.startswith(f"{DOCS}/") and path not in PAGES and (root / path).exists():
                found.add(path)
                if (root / path).is_dir():
                    found.update(_files_in(root, path))
    return found


def _files_in(root: Path, folder: str) -> list[str]:
    files = [path.relative_to(root).as_posix() for path in (root / folder).rglob("*") if path.is_file()]
    return sorted(path for path in files if not re.search(r"(^|/)(\.|__pycache__)", path))


def _source_page(root: Path, path: str) -> str:
    source = root / path
    if source.is_dir():
        listed = _files_in(root, path)
        return f"# {path}\n\n" + "".join(
            f"- [{inside}]({posixpath.relpath(_site_uri(inside), posixpath.dirname(_site_uri(path)))})\n"
            for inside in listed
        )
    language = LANGUAGES.get(source.suffix, "text")
    return f"# {path}\n\n~~~~{language}\n{source.read_text()}\n~~~~\n"


# -- links


def _repository_path(link: str, uri: str) -> str | None:
    """Return what a link of the page `uri` names, from the root of the repository; None if it is no file of it."""
    if ELSEWHERE.match(link):
        return None
    source = next((path for path, page in PAGES.items() if page == uri), f"{DOCS}/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link.partition("#")[0]))


def _site_uri(path: str) -> str:
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else f"source/{path}.md"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - called by name
    for beginning, boost in BOOSTS.items():
        if page.file.src_uri.startswith(beginning):
            page.meta["search"] = {"boost": boost}
    return rewrite_links(markdown, page.file.src_uri)


def rewrite_links(markdown: str, uri: str) -> str:
    """Make the links of a page lead to pages of the site."""
    if uri.startswith("source/"):
        return markdown
    parts: list[str] = []
    end = 0
    for link in links(markdown):
        if (path := _repository_path(link[0], uri)) is not None:
            heading = "".join(link[0].partition("#")[1:])
            parts += [markdown[end : link.start()], posixpath.relpath(_site_uri(path), posixpath.dirname(uri)), heading]
            end = link.end()
    return "".join([*parts, markdown[end:]])


# -- llms.txt

_pages: list[Page] = []


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:  # noqa: ARG001 - called by name
    _pages[:] = nav.pages
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    listed: dict[str, list[str]] = {}
    full: list[str] = []
    for page in _pages:
        prose = _COMMENT.sub("", page.file.content_string)
        text = with_docstrings(rewrite_links(prose, page.file.src_uri), _root(config) / "src")
        copy = site / page.file.src_uri
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
        ancestors = cast("list[Section]", page.ancestors)
        title = str(page.title)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        listed.setdefault(ancestors[-1].title if ancestors else "Start", []).append(
            f"- [{title}]({page.file.src_uri}): {first_sentence(text, page)}"
        )
        full.append(f"<!-- {page.file.src_uri} -->\n\n{text.strip()}\n")
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    sections = ["\n".join([f"## {title}", "", *entries, ""]) for title, entries in listed.items()]
    (site / "llms.txt").write_text("\n".join([head, *sections]))
    (site / "llms-full.txt").write_text("\n".join([head, *full]))


def first_sentence(text: str, page: Page) -> str:
    """Return what the page is about: the first sentence of its first paragraph, without links."""
    prose = re.sub(r"^#+ .*$", "", _FENCE.sub("", text), flags=re.MULTILINE)
    for paragraph in prose.split("\n\n"):
        plain = " ".join(re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph).split())
        if " " in plain and (plain[0].isalnum() or plain[0] in "`*"):
            return re.split(r"(?<=[.:]) ", plain)[0].removesuffix(":")
    raise PluginError(f"{page.file.src_uri} has no paragraph that says what it is about")


# -- docstrings, as text


def with_docstrings(markdown: str, sources: Path) -> str:
    """Put the signature and the docstrings of an object in the place of its `:::`."""

    def described(found: re.Match[str]) -> str:
        members = re.findall(r"^ {8}- (\w+)$", found[0], re.MULTILINE)
        return "\n".join([*_described(found[1], _object(found[1], sources), 2, members), ""])

    return _DIRECTIVE.sub(described, markdown)


@cache
def _package(sources: Path) -> griffe.Module:
    return cast("griffe.Module", griffe.load("horsies", search_paths=[str(sources)], resolve_aliases=True))


def _object(path: str, sources: Path) -> griffe.Object:
    found = _package(sources)[path.removeprefix("horsies.")]
    return cast("griffe.Object", found.final_target if isinstance(found, griffe.Alias) else found)


def docstring(path: str, sources: Path) -> str | None:
    """Return the docstring of an object, as it is in the sources."""
    found = _object(path, sources).docstring
    return None if found is None else found.value


def _described(name: str, thing: griffe.Object, rank: int, members: Sequence[str] = ()) -> Iterator[str]:
    """Yield its heading, signature and docstring, and those of its members: of these alone, or of all that are documented."""
    yield f"{'#' * rank} `{name}`\n"
    if signature := _signature(thing):
        yield f"```python\n{signature}\n```\n"
    if thing.docstring is not None:
        yield f"{thing.docstring.value}\n"
    if isinstance(thing, griffe.Class):
        for member in [thing.all_members[name] for name in members] or thing.all_members.values():
            found = member.final_target if isinstance(member, griffe.Alias) else member
            if not found.name.startswith("_") and (found.docstring is not None or _is_enum(thing)):
                yield from _described(found.name, found, rank + 1)


def _signature(thing: griffe.Object) -> str | None:
    if isinstance(thing, griffe.Function):
        return thing.signature()
    if isinstance(thing, griffe.Class) and "dataclass" in thing.labels:
        return thing.signature()
    if isinstance(thing, griffe.Attribute):
        annotation = f": {thing.annotation}" if thing.annotation else ""
        return f"{thing.name}{annotation}" + (f" = {thing.value}" if thing.value is not None else "")
    return None


def _is_enum(thing: griffe.Class) -> bool:
    return any("Enum" in str(base) for base in thing.bases)
