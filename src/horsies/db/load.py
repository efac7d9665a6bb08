"""Reads the `.sql` twins: blocks that begin with `-- name: verb`."""

import re
from collections.abc import Mapping
from pathlib import Path

from horsies.db.op import Statement

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load(python_file: str) -> Mapping[str, Statement]:
    """The statements of the `.sql` file beside this Python file, by name."""
    twin = Path(python_file).with_suffix(".sql")
    head, *parts = _NAME.split(twin.read_text(encoding="utf-8"))
    if re.sub(r"--.*", "", head).strip():
        raise ValueError(f"{twin.name}: SQL before the first '-- name:' line")
    names, texts = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{twin.name}: a name stands twice")
    return {name: Statement(name, _strip(text)) for name, text in zip(names, texts, strict=True)}


def _strip(text: str) -> str:
    """Comments are for readers of the file; the server need not parse them on every call."""
    lines = (re.sub(r"\s*-- .*$", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)
