"""Results put into the arguments that refer to them, as text: what is in a result is never decoded on the way."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

from pydantic_core import from_json, to_json

from horsies.model.graph import Step

Holes: TypeAlias = "dict[Step, str | Holes]"


def spliced(args: str | bytes, pieces: Iterable[tuple[tuple[Step, ...], str]]) -> str:
    """The JSON text `args` with each piece of JSON text at its path, where a null was held for it."""
    holes: Holes = {}
    for path, piece in pieces:
        _dig(holes, path, piece)
    return _written(from_json(args), holes) if holes else args if isinstance(args, str) else args.decode()


def result_text(ok: str | None, err: str | None) -> str:
    """A TaskResult as JSON, from the texts of its value or its error: a value that is null is the text `null`."""
    return f'{{"err":{err}}}' if err is not None else f'{{"ok":{"null" if ok is None else ok}}}'


def _dig(holes: Holes, path: tuple[Step, ...], piece: str) -> None:
    for step in path[:-1]:
        holes = cast("Holes", holes.setdefault(step, {}))
    holes[path[-1]] = piece


def _written(value: object, holes: "str | Holes | None") -> str:
    match value, holes:
        case _, str():
            return holes
        case dict(), dict():
            members = cast("Mapping[str, object]", value).items()
            return f"{{{','.join(f'{_text(key)}:{_written(item, holes.get(key))}' for key, item in members)}}}"
        case list(), dict():
            items = enumerate(cast("list[object]", value))
            return f"[{','.join(_written(item, holes.get(position)) for position, item in items)}]"
        case _:
            return _text(value)


def _text(value: object) -> str:
    return to_json(value).decode()
