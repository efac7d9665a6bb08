"""The diffs of examples/celery_port in docs/from-celery.md: `python -m tools.port_diff` writes them."""

import difflib
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PORT: Final = ROOT / "examples" / "celery_port"
PAGE: Final = ROOT / "docs" / "from-celery.md"
_PLACE: Final = re.compile(r"(<!-- port: (?P<file>\S+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def with_diffs(page: str) -> str:
    """Return the page with the current diff between each pair of markers."""
    return _PLACE.sub(lambda place: f"{place[1]}```diff\n{_diff(place['file'])}```\n{place[3]}", page)


def _diff(file: str) -> str:
    before, after = (
        (PORT / version / file).read_text().replace(f"celery_port.{version}", "celery_port").splitlines(keepends=True)
        for version in ("before", "after")
    )
    return "".join(difflib.unified_diff(before, after, f"before/{file}", f"after/{file}", n=100))


if __name__ == "__main__":
    PAGE.write_text(with_diffs(PAGE.read_text()))
