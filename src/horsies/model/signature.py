"""What a function takes and returns, by its annotations: resolved, and checked as far as that can be done without building anything of them.

Most tasks are plain functions whose parameters can all be passed by name. Of these everything can be read from the function itself; the others
are for `signatures.py`. That has `inspect` do it, which takes a tenth of a child's start to load.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeGuard, TypeVar, get_args, get_origin

from horsies.model.errors import TaskDefinitionError
from horsies.model.parameters import (
    COROUTINE,
    Parameters,
    WantedParameter,
    annotations_of,
    is_simple,
    name_of,
    names_of,
    resolve_annotation,
    simple_parameters,
    type_text,
)
from horsies.model.result import TaskError, TaskResult

_MISSING: Final = object()


def parameters_of(fn: Callable[..., object]) -> Parameters:
    if is_simple(fn) and not set(WantedParameter) & set(names_of(fn.__code__)):
        return Parameters(simple=simple_parameters(fn))
    from horsies.model.inspect_signature import parameters_of_any  # noqa: PLC0415 - see above

    return parameters_of_any(fn)


def ok_type(fn: Callable[..., object]) -> Any:
    """The T of a function that returns `TaskResult[T, TaskError]`; any other function cannot be a task."""
    returned: Any = _returned(fn)
    arguments = get_args(returned)
    if get_origin(returned) is TaskResult and arguments[1] is TaskError and not isinstance(arguments[0], TypeVar):
        return arguments[0]
    found = "has no return annotation" if returned is _MISSING else f"returns {type_text(returned)}"
    raise TaskDefinitionError(
        f"{name_of(fn)} {found}, but a task returns TaskResult[T, TaskError], where T is the type of its good value; "
        f"write it like `def {name_of(fn)}(...) -> TaskResult[int, TaskError]`"
    )


def is_coroutine_function(fn: Callable[..., object]) -> TypeGuard[Callable[..., Coroutine[Any, Any, Any]]]:
    if is_simple(fn):
        return bool(fn.__code__.co_flags & COROUTINE)
    import inspect  # noqa: PLC0415 - see above

    return inspect.iscoroutinefunction(fn)


def takes_nothing(fn: Callable[..., object]) -> bool:
    """It can be called without arguments."""
    if is_simple(fn) and not names_of(fn.__code__):
        return True
    import inspect  # noqa: PLC0415 - see above

    try:
        inspect.signature(fn).bind()
    except TypeError:
        return False
    return True


def _returned(fn: Callable[..., object]) -> Any:
    if is_simple(fn):
        found = annotations_of(fn).get("return", _MISSING)
        return found if found is _MISSING else resolve_annotation(fn, "the return annotation", found, fn.__globals__)
    from horsies.model.inspect_signature import returned_by_any  # noqa: PLC0415 - see above

    return returned_by_any(fn, _MISSING)
