"""What a function's annotations say: resolved, and checked as far as that can be done without building anything of them."""

import inspect
import types
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from horsies.model.errors import TaskDefinitionError
from horsies.model.result import TaskError, TaskResult


class Wanted(StrEnum):
    """A parameter that is filled in when the task runs, and that nobody passes."""

    CONTEXT = "workflow_ctx"
    META = "workflow_meta"


def signature_of(fn: Callable[..., object]) -> inspect.Signature:
    """The signature with every annotation resolved, also those that are written as strings."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError, NameError) as error:
        raise TaskDefinitionError(f"{name_of(fn)}: its signature cannot be read: {error}") from error
    namespace = getattr(inspect.unwrap(fn), "__globals__", {})
    parameters = [
        parameter.replace(annotation=_resolved(fn, f"parameter '{name}'", parameter.annotation, namespace))
        for name, parameter in signature.parameters.items()
    ]
    returned = _resolved(fn, "the return annotation", signature.return_annotation, namespace)
    return signature.replace(parameters=parameters, return_annotation=returned)


def without_wanted(
    fn: Callable[..., object], signature: inspect.Signature
) -> tuple[inspect.Signature, dict[Wanted, inspect.Parameter]]:
    """What callers see of a signature, and the parameters that a workflow fills in, which go by keyword."""
    by_keyword = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
        by_keyword = {inspect.Parameter.KEYWORD_ONLY}  # what stands before *args is taken by position
    wanted = {Wanted(name): signature.parameters[name] for name in Wanted if name in signature.parameters}
    if not wanted:
        return signature, {}
    for name, parameter in wanted.items():
        if parameter.kind not in by_keyword:
            raise TaskDefinitionError(
                f"{name_of(fn)}: parameter '{name}' is filled in by keyword, which its place does not allow; "
                f"write it after a bare * or after *args"
            )
    others = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
    return signature.replace(parameters=others), wanted


def ok_type(fn: Callable[..., object]) -> Any:
    """The T of a function that returns `TaskResult[T, TaskError]`; any other function cannot be a task."""
    returned: Any = signature_of(fn).return_annotation
    arguments = get_args(returned)
    if get_origin(returned) is TaskResult and arguments[1] is TaskError and not isinstance(arguments[0], TypeVar):
        return arguments[0]
    found = "has no return annotation" if returned is inspect.Signature.empty else f"returns {shown_type(returned)}"
    raise TaskDefinitionError(
        f"{name_of(fn)} {found}, but a task returns TaskResult[T, TaskError], where T is the type of its good value; "
        f"write it like `def {name_of(fn)}(...) -> TaskResult[int, TaskError]`"
    )


def name_of(fn: Callable[..., object]) -> str:
    return getattr(fn, "__name__", None) or repr(fn)


def shown_type(tp: Any) -> str:
    return tp.__name__ if isinstance(tp, type) and not get_args(tp) else str(tp)


def _resolved(fn: Callable[..., object], what: str, annotation: Any, namespace: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, globalns=namespace, include_extras=True)["it"]
    except Exception as error:  # a string annotation is evaluated, so it can raise anything
        raise TaskDefinitionError(
            f"{name_of(fn)}: {what} {annotation!r} cannot be resolved: {error}; "
            "define or import its names at module level, and not under TYPE_CHECKING"
        ) from error
