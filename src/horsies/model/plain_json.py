"""Plain values: what JSON has anyway, and lists and dicts of it. They are read and written here without pydantic.

Loading pydantic takes more CPU than all the rest of a child's start, and most tasks take numbers and texts. What is here says yes only
where pydantic would do the very same: the same value from a text, the same text from a value. Everything else, be it wrong or only
unusual, gets no answer: then pydantic is asked, decides, and finds the words.
"""

import json
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union, cast, get_args, get_origin

if TYPE_CHECKING:
    from horsies.model.signature import Parameter

Test: TypeAlias = Callable[[object], bool]
"""Whether a value is exactly of a type, no subclass of it, and certain to be written and read as itself."""

MAX_DEPTH: Final = 32
MAX_MEMBERS: Final = 300  # of a list or dict, beyond which pydantic is quicker
MAX_TEXT: Final = 4_000  # characters to read, for the same reason

_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


class NotPlain(Enum):
    NOT_PLAIN = auto()


NOT_PLAIN: Final = NotPlain.NOT_PLAIN


def test_for(tp: Any) -> Test | None:
    """None: values of this annotation are not for us."""
    for known, test in _KNOWN:
        if tp is known:
            return test
    origin, inner = get_origin(tp), get_args(tp)
    if origin is list:
        return _made(_is_list_of, test_for(inner[0]))
    if origin is dict and inner[0] is str:
        return _made(_is_dict_of, test_for(inner[1]))
    if origin in {Union, types.UnionType} and len(inner) == 2 and type(None) in inner:  # noqa: PLR2004 - `T | None`
        return _made(_is_none_or, test_for(inner[0] if inner[1] is type(None) else inner[1]))
    return None


def test_for_arguments(parameters: "Iterable[Parameter]") -> Test | None:
    """For a dict of arguments by name."""
    tests: dict[str, Test] = {}
    required: set[str] = set()
    for parameter in parameters:
        test = test_for(parameter.annotation)
        if test is None:
            return None
        tests[parameter.name] = test
        if parameter.is_required:
            required.add(parameter.name)
    return partial(_is_call, tests, required)


def read(text: str | bytes, test: Test) -> Any | NotPlain:
    """The value that a JSON text stands for, if that is certain."""
    if isinstance(text, bytes) or len(text) > MAX_TEXT or "\\u" in text:  # which may be half of a pair
        return NOT_PLAIN
    try:
        value = _DECODER.decode(text)
        if not text.isascii():
            text.encode()
    except (ValueError, RecursionError):
        return NOT_PLAIN
    return value if test(value) else NOT_PLAIN


def write(value: object, test: Test) -> bytes | None:
    """The JSON of a value, if that is certain."""
    if not test(value):
        return None
    try:
        return _ENCODER.encode(value).encode()
    except ValueError:  # half of a pair, or a number of more digits than Python writes
        return None


def _made(test: Callable[[Test, object], bool], inner: Test | None) -> Test | None:
    return partial(test, inner) if inner else None


def _is_none(value: object) -> bool:
    return value is None


def _is_bool(value: object) -> bool:
    return value is True or value is False


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_float(value: object) -> bool:
    # With an exponent the two write it differently; so do they infinity, which has an n in it, as NaN has.
    return type(value) is float and "e" not in (shown := repr(value)) and "n" not in shown


def _is_str(value: object) -> bool:
    return type(value) is str


def _is_list_of(test: Test, value: object) -> bool:
    if type(value) is not list:
        return False
    items = cast("list[object]", value)
    return len(items) <= MAX_MEMBERS and _all(test, items)


def _is_dict_of(test: Test, value: object) -> bool:
    if type(value) is not dict:
        return False
    members = cast("dict[object, object]", value)
    return len(members) <= MAX_MEMBERS and _all(_is_str, members) and _all(test, members.values())


def _all(test: Test, items: Iterable[object]) -> bool:
    kind = _TYPE_ALONE.get(test)
    return all(map(test, items)) if kind is None else set(map(type, items)) <= {kind}  # without a call for each


def _is_call(tests: Mapping[str, Test], required: set[str], value: object) -> bool:
    if type(value) is not dict:
        return False
    given = cast("dict[str, object]", value)
    if not required <= given.keys():
        return False
    for name, item in given.items():
        test = tests.get(name)
        if test is None or not test(item):
            return False
    return True


def _is_none_or(test: Test, value: object) -> bool:
    return value is None or test(value)


def is_json(value: object, depth: int = MAX_DEPTH) -> bool:
    """Also false for one that contains itself."""
    scalar = _SCALARS.get(type(value))
    if scalar:
        return scalar(value)
    inner = partial(is_json, depth=depth - 1)
    return depth > 0 and (_is_list_of(inner, value) or _is_dict_of(inner, value))


_SCALARS: Final[dict[type, Test]] = {
    type(None): _is_none,
    bool: _is_bool,
    int: _is_int,
    float: _is_float,
    str: _is_str,
}
_TYPE_ALONE: Final[dict[Test, type]] = {_is_none: type(None), _is_bool: bool, _is_int: int, _is_str: str}
# Compared by identity: an annotation need not be hashable.
_KNOWN: Final[tuple[tuple[Any, Test], ...]] = (
    *_SCALARS.items(),
    (None, _is_none),
    (Any, is_json),
    (object, is_json),
    (list, partial(_is_list_of, is_json)),
    (dict, partial(_is_dict_of, is_json)),
)
