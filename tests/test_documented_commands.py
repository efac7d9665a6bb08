"""The commands that the pages tell to type are accepted: they exist, and so do their options."""

import re
import shlex
from pathlib import Path

import click
import pytest

from horsies.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^ *```(?:console|bash)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The commands of ours that a page tells to type, without what a shell does with them."""
    typed = "\n".join(BLOCK.findall(page.read_text())).replace("\\\n", " ")
    found = re.findall(r"^ *(?:\$ |# )?(?:[A-Z_]+=\S+ )*(horsies [^\n]+)$", typed, re.MULTILINE)
    return [re.split(r" (?:[|>&;]|2>)", line)[0] for line in found]


SHOWN = [(page.name, line) for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("page", "line"), SHOWN, ids=[f"{page}: {line}" for page, line in SHOWN])
def test_every_command_is_accepted(page: str, line: str) -> None:
    name, *words = shlex.split(line, comments=True)
    command: click.Command = main
    context = click.Context(main, info_name=name)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None and command is not main:
            break  # an argument, such as the app of `horsies web`
        assert found is not None, f"{page}: there is no command {words[0]!r}"
        command = found
        del words[0]
    if words != ["--help"]:
        command.make_context(line, words)


def test_the_commands_of_all_pages_are_found() -> None:
    assert len(SHOWN) > 50
    assert ("tutorial.md", "horsies dev shop:app") in SHOWN
