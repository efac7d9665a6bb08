"""The quick start of README.md, typed as it is printed: the file is saved, the commands run, and print what the page says."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from horsies.cli.web import serve
from tests.fixtures.eventually import eventually
from tests.fixtures.web import fetch, free_port
from tests.fixtures.workers import Program
from tests.test_snippets import modules_of
from tests.test_tutorial import BLOCK, DEV, Reader, folder

__all__ = ["folder"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
WEB = "horsies web shop:app"


def console_blocks() -> list[str]:
    """The commands, without the comment or the `&` behind them."""
    texts = [block["text"] for block in BLOCK.finditer(PAGE.read_text()) if block["kind"] == "console"]
    return [re.sub(r" +(?:&|#.*)$", "", text, flags=re.MULTILINE) for text in texts]


@pytest.mark.timeout(180)
def test_the_quick_start(folder: Path) -> None:
    install, in_project, in_browser, in_clone = console_blocks()
    targets = re.findall(r"^\$ make (\w+)$", in_clone, re.MULTILINE)
    assert targets == ["demo", "test"]
    assert all(f"\n{target}: " in (ROOT / "Makefile").read_text() for target in targets)
    shop, mounted = modules_of(PAGE).values()
    reader = Reader(folder)
    try:
        reader.save("shop.py", shop)
        reader.type(install + in_project)
        assert reader.ran == ['pip install "horsies[dev]"', DEV, "python shop.py"]
        reader.save("shop.py, instead of     return TaskResult(ok=a + b)", "    return TaskResult(ok=a * b)\n")
        reader.type("$ python shop.py\nTaskResult(ok=2)\n")  # the worker was restarted
        reader.save("api.py", mounted)
        reader.type("$ python api.py\n")
        assert reader.dev is not None
        assert re.findall(r"^\$ (horsies .+)$", in_browser, re.MULTILINE) == [WEB]
        port = free_port()
        with closing(Program(*WEB.split()[1:], f"--port={port}", env=reader.env, cwd=reader.shop)) as web:
            eventually(lambda: fetch(port, "/").status == 200, 30, seen=lambda: web.logs)
    finally:
        if reader.dev is not None:
            reader.dev.close()


def test_the_dashboard_has_the_address_of_the_page() -> None:
    default = {option.name: option.default for option in serve.params}
    assert f"http://{default['host']}:{default['port']}/" in PAGE.read_text()
