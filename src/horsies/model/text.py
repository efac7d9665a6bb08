"""Texts for people: stored text that is safe to show, and numbers with their nouns."""

import re
from typing import Final

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
UNPRINTABLE_IN_LINES: Final = re.compile(_UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    """Replace characters that a terminal would obey, that are invisible, or that change the direction of text by their escapes.

    With `lines`, line ends and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return (UNPRINTABLE_IN_LINES if lines else _UNPRINTABLE).sub(lambda match: repr(match[0])[1:-1], text)


def plural(count: object, noun: str) -> str:
    """Return a number with its noun: `1 task`, `3 tasks`, `100+ tasks`."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"
