"""`make docs`: build the documentation site. Any warning fails it: a dead link, an unknown name, a page that is not in `nav`.

`make docs VERSIONS=folder` builds it into `folder/0.1/` and lists all versions of that folder in `versions.json`, from which the pages get a
selector. `index.html` leads to the newest. Any web server can serve the folder.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SELECTOR = "HORSIES_DOCS_VERSIONS"  # in the environment of the build: there is a list of versions beside the site
REDIRECT = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/index.html"><a href="{0}/index.html">{0}</a>\n'


def build(site: Path, config: Path = ROOT / "mkdocs.yml", *, has_versions: bool = False) -> None:
    """Build the site, or raise CalledProcessError."""
    # Not --quiet: warnings that are not shown are not counted, so nothing would be strict.
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        f"--config-file={config}",
        f"--site-dir={site.resolve()}",
    ]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", SELECTOR: "1" if has_versions else ""}
    subprocess.run(command, cwd=ROOT, env=env, check=True)


def add_version(folder: Path, release: str) -> None:
    """Build this version into the folder of all versions, in the place of an earlier build of it."""
    name = ".".join(release.split(".")[:2])
    build(folder / name, has_versions=True)
    list_versions(folder, {name: release})


def list_versions(folder: Path, titles: dict[str, str]) -> None:
    """Write versions.json, newest first, and lead to the newest. A version keeps its title unless it gets a new one."""
    listing = folder / "versions.json"
    if listing.exists():
        titles = {entry["version"]: entry["title"] for entry in json.loads(listing.read_text())} | titles
    names = [path.name for path in folder.iterdir() if re.fullmatch(r"\d+\.\d+", path.name)]
    newest, *others = sorted(names, key=lambda name: tuple(map(int, name.split("."))), reverse=True)
    entries = [
        {"version": name, "title": titles.get(name, name), "aliases": ["latest"] if name == newest else []}
        for name in (newest, *others)
    ]
    listing.write_text(json.dumps(entries, indent=2) + "\n")
    (folder / "index.html").write_text(REDIRECT.format(newest))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("make docs", description="Build the documentation site.")
    parser.add_argument("versions", nargs="?", type=Path, help="a folder that has each version in a folder of its own")
    folder = parser.parse_args(arguments).versions
    try:
        if folder is None:
            build(ROOT / "build" / "docs")
        else:
            add_version(folder, version("horsies"))
    except subprocess.CalledProcessError:
        return 1
    print(f"the documentation is in {'build/docs' if folder is None else folder}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
