"""Whether what arrives is what was sent.

JSON knows strings, numbers and null, so a reader sometimes takes one thing for another: NaN in a model becomes null and then
None, an enum in `Colour | str` becomes its text, the keys 1 and "1" become one. Each of these is written and read without a
complaint. What is equal passes at once; otherwise a difference is reported only where it is certain, because types of the user's
own may have no `==`, or keep less than they hold.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias, cast

from pydantic import BaseModel

Step: TypeAlias = int | str
Change: TypeAlias = tuple[tuple[Step, ...], object, object]
Parts: TypeAlias = Iterator[tuple[Step, object, object]]


def change(sent: object, arrived: object) -> Change | None:
    """The first place where they certainly differ, with what is there on either side."""
    return None if _equal(sent, arrived) else next(_changes((), sent, arrived), None)


def _changes(loc: tuple[Step, ...], sent: object, arrived: object) -> Iterator[Change]:
    if _equal(sent, arrived):
        return
    if _is_other(sent, arrived):
        yield loc, sent, arrived
        return
    for step, left, right in _parts(sent, arrived):
        yield from _changes((*loc, step), left, right)


def _equal(sent: object, arrived: object) -> bool:
    try:
        return (sent == arrived) is True
    except Exception:  # noqa: BLE001 - an == of the user's own
        return False


def _is_other(sent: object, arrived: object) -> bool:
    """A difference that no type of the user's can explain."""
    match sent, arrived:
        case (None, _) | (_, None):
            return True
        case (str(), _) | (_, str()):
            return type(sent) is not type(arrived)
        case (Mapping(), Mapping()):
            sides = cast("Mapping[Any, Any]", sent), cast("Mapping[Any, Any]", arrived)
            return len(sides[0]) != len(sides[1]) or _text_keys(sides[0]) != _text_keys(sides[1])
        case (AbstractSet(), AbstractSet()):
            return len(cast("AbstractSet[Any]", sent)) != len(cast("AbstractSet[Any]", arrived))
        case _:
            # A subclass arrives as the class that is annotated: that is what the annotation says.
            return not isinstance(sent, type(arrived)) and _has_fields(sent) and _has_fields(arrived)


def _text_keys(mapping: Mapping[Any, Any]) -> list[str]:
    return [key for key in mapping if isinstance(key, str)]


def _parts(sent: object, arrived: object) -> Parts:
    """What is inside the two, side by side: JSON keeps the order."""
    match sent, arrived:
        case (Mapping(), Mapping()):
            yield from _items(cast("Mapping[Any, Any]", sent), cast("Mapping[Any, Any]", arrived))
        case (Sequence(), Sequence()) if not isinstance(sent, str | bytes):
            sides = zip(cast("Sequence[Any]", sent), cast("Sequence[Any]", arrived), strict=False)
            yield from ((number, left, right) for number, (left, right) in enumerate(sides))
        case _ if _has_fields(sent) and _has_fields(arrived):
            others = dict(_fields(arrived))
            yield from ((name, value, others[name]) for name, value in _fields(sent) if name in others)
        case _:
            return


def _items(sent: Mapping[Any, Any], arrived: Mapping[Any, Any]) -> Parts:
    for (key, left), (other, right) in zip(sent.items(), arrived.items(), strict=False):
        step = key if isinstance(key, int | str) else repr(key)
        yield step, key, other
        yield step, left, right


def _has_fields(value: object) -> bool:
    return isinstance(value, BaseModel) or dataclasses.is_dataclass(value)


def _fields(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, BaseModel):
        declared, held = type(value).model_fields, value.__dict__ | (value.model_extra or {})
        yield from ((name, item) for name, item in held.items() if name not in declared or not declared[name].exclude)
    elif dataclasses.is_dataclass(value):
        yield from ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
