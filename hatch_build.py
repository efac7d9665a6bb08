"""The description that package indexes show: the README, without links that only work in the repository, and without comments.

With a `documentation` address in `[tool.hatch.metadata.hooks.custom]` of pyproject.toml, links lead to the pages of the site that `make docs`
builds, and the metadata has `Documentation` and `Changelog`. Without one, a link becomes its text and the path of the file in the source distribution.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\[\]])*)\]\((?P<target>[^)\s]+)\)")
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)  # the rest of a snippet, for tests
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#")
NOTE = "\nThe files that this page names are in the source distribution: `pip download --no-deps --no-binary horsies horsies`.\n"


def describe(readme: str, documentation: str) -> str:
    """Rewrite the links of the README, and leave out its comments."""

    def rewrite(link: re.Match[str]) -> str:
        text, target = LINK.sub(rewrite, link["text"]), link["target"]
        if ELSEWHERE.match(target):
            return f"{link['image']}[{text}]({target})"
        if documentation:
            return f"{link['image']}[{text}]({documentation.rstrip('/')}/{page_of(target)})"
        if link["image"] or not text:
            return ""  # an image, or a link around one
        return f"{text} (`{target.partition('#')[0]}`)"

    return LINK.sub(rewrite, COMMENT.sub("", readme)) + ("" if documentation else NOTE)


def page_of(target: str) -> str:
    """Return where the site has a file of the repository."""
    path, mark, heading = target.partition("#")
    if path.startswith("docs/"):
        page = path.removeprefix("docs/").replace("README.md", "index.md")
    else:
        page = path.lower() if path in {"CHANGELOG.md", "CONTRIBUTING.md"} else f"source/{path}.md"
    return f"{page.removesuffix('.md')}.html{mark}{heading}" if page.endswith(".md") else page


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        documentation: str = self.config.get("documentation", "")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(readme, documentation)}
        if documentation:
            site = documentation.rstrip("/")
            metadata["urls"] = {"Documentation": f"{site}/index.html", "Changelog": f"{site}/changelog.html"}
            if source := self.config.get("source", ""):
                metadata["urls"]["Source"] = source
