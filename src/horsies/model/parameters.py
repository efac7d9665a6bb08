"""Functions as they are written: what can be read from the function itself, and what is said of its parameters."""

import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeGuard, get_args, get_type_hints

from horsies.model.errors import TaskDefinitionError
from horsies.model.record import Record

# Bits of `co_flags`, as `inspect` names them.
_VARARGS: Final = 0x04
_VARKEYWORDS: Final = 0x08
COROUTINE: Final = 0x80


class WantedParameter(StrEnum):
    """A parameter that is filled in when the task runs, and that nobody passes."""

    CONTEXT = "workflow_ctx"
    META = "workflow_meta"


class Parameter(Record):
    """One that can be passed by name."""

    name: str
    annotation: Any
    """Any where there is none."""
    is_required: bool
    by_place: bool
    """It can be passed by position, too."""


class Parameters(Record):
    """What callers pass to a function, and what a workflow fills in."""

    simple: tuple[Parameter, ...] | None
    """All of them; None where there are others than those that can be passed by name."""
    positional: tuple[tuple[str, Any], ...] = ()
    """Those that must be passed by position, and their defaults."""
    var_positional: str | None = None
    var_keyword: str | None = None
    wants: frozenset[WantedParameter] = frozenset()
    """Filled in when it runs: nobody passes these."""
    needs: frozenset[WantedParameter] = frozenset()
    """Those of them without a default: it cannot run where they are not to be had."""


def is_simple(fn: Callable[..., object]) -> TypeGuard[types.FunctionType]:
    """Nothing but a function (no wrapper that stands for another one), all of whose parameters can be passed by name."""
    if type(fn) is not types.FunctionType or vars(fn):
        return False
    return not (fn.__code__.co_flags & (_VARARGS | _VARKEYWORDS) or fn.__code__.co_posonlyargcount)


def names_of(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def simple_parameters(fn: types.FunctionType) -> tuple[Parameter, ...]:
    names, places = names_of(fn.__code__), fn.__code__.co_argcount
    defaults = {*names[places - len(fn.__defaults__ or ()) : places], *(fn.__kwdefaults__ or ())}
    return tuple(
        Parameter(
            name=name,
            annotation=_annotation(fn, name),
            is_required=name not in defaults,
            by_place=place < places,
        )
        for place, name in enumerate(names)
    )


def _annotation(fn: types.FunctionType, name: str) -> Any:
    annotations = annotations_of(fn)
    return (
        resolve_annotation(fn, f"parameter '{name}'", annotations[name], fn.__globals__) if name in annotations else Any
    )


def annotations_of(fn: types.FunctionType) -> Mapping[str, Any]:
    try:
        return fn.__annotations__
    except NameError as error:  # from Python 3.14 on they are evaluated here
        raise TaskDefinitionError(f"{name_of(fn)}: its signature cannot be read: {error}") from error


def name_of(fn: Callable[..., object]) -> str:
    return getattr(fn, "__name__", None) or repr(fn)


def type_text(tp: Any) -> str:
    return tp.__name__ if isinstance(tp, type) and not get_args(tp) else str(tp)


def resolve_annotation(fn: Callable[..., object], what: str, annotation: Any, namespace: dict[str, Any]) -> Any:
    """An annotation as the type that it stands for, also if it is written as a string."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, globalns=namespace, include_extras=True)["it"]
    except Exception as error:  # a string annotation is evaluated, so it can raise anything
        raise TaskDefinitionError(
            f"{name_of(fn)}: {what} {annotation!r} cannot be resolved: {error}; "
            "define or import its names at module level, and not under TYPE_CHECKING"
        ) from error
