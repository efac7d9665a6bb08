"""Read what a function takes and returns from its signature and annotations."""

import inspect
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from horsies.model.errors import TaskDefinitionError
from horsies.model.result import Err, Ok, TaskError, TaskResult

UNIONS: Final = (Union, types.UnionType)

is_coroutine_function = inspect.iscoroutinefunction


class InjectedParameter(StrEnum):
    """A parameter that a workflow fills in when the task runs. Callers do not pass it."""

    CONTEXT = "workflow_ctx"
    META = "workflow_meta"


def signature_of(fn: Callable[..., object]) -> inspect.Signature:
    """Return the signature with every annotation resolved, also those that are written as strings."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError, NameError) as error:  # from Python 3.14 on, annotations are evaluated here
        raise TaskDefinitionError(f"{function_name(fn)}: its signature cannot be read: {error}") from error
    namespace = getattr(inspect.unwrap(fn), "__globals__", {})

    def resolve(what: str, annotation: Any) -> Any:
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return _join_results(get_type_hints(holder, globalns=namespace, include_extras=True)["it"])
        except Exception as error:  # a string annotation is evaluated, so it can raise anything
            raise TaskDefinitionError(
                f"{function_name(fn)}: {what} {annotation!r} cannot be resolved: {error}; "
                "define or import its names at module level, and not under TYPE_CHECKING"
            ) from error

    parameters = signature.parameters.values()
    resolved = [each.replace(annotation=resolve(f"parameter '{each.name}'", each.annotation)) for each in parameters]
    returned = resolve("the return annotation", signature.return_annotation)
    return signature.replace(parameters=resolved, return_annotation=returned)


def _join_results(tp: Any) -> Any:
    """Replace `Result[int]`, which is `Ok[int] | Err[TaskError]`, by `TaskResult[int, TaskError]`, also in a list or another union."""
    arguments = get_args(tp)
    if get_origin(tp) is list and arguments:
        return list[_join_results(arguments[0])]
    kinds = {get_origin(member): get_args(member) for member in arguments}
    if get_origin(tp) not in UNIONS or not {Ok, Err} <= kinds.keys():
        return tp
    others = tuple(member for member in arguments if get_origin(member) not in (Ok, Err))
    return Union[TaskResult[kinds[Ok][0], kinds[Err][0]], *others]


def callers_signature(
    fn: Callable[..., object],
) -> tuple[inspect.Signature, Mapping[InjectedParameter, inspect.Parameter]]:
    """Return the resolved signature as callers see it, and the parameters that a workflow fills in."""
    signature = signature_of(fn)
    injected = {
        InjectedParameter(name): signature.parameters[name]
        for name in InjectedParameter
        if name in signature.parameters
    }
    # They are passed by keyword. A parameter that stands before *args is filled by position instead.
    has_rest = any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values())
    for name, each in injected.items():
        if each.kind is not each.KEYWORD_ONLY and (has_rest or each.kind is not each.POSITIONAL_OR_KEYWORD):
            raise TaskDefinitionError(
                f"{function_name(fn)}: parameter '{name}' is passed by keyword, which its place does not allow; "
                f"write it after a bare * or after *args"
            )
    others = [each for name, each in signature.parameters.items() if name not in injected]
    return signature.replace(parameters=others), injected


def ok_type(fn: Callable[..., object]) -> Any:
    """Return the T of a function that returns `TaskResult[T, TaskError]`; any other function cannot be a task."""
    returned = signature_of(fn).return_annotation
    arguments = get_args(returned)
    if get_origin(returned) is TaskResult and arguments[1] is TaskError and not isinstance(arguments[0], TypeVar):
        return arguments[0]
    has_none = returned is inspect.Signature.empty
    found = "has no return annotation" if has_none else f"returns {display_type(returned)}"
    raise TaskDefinitionError(
        f"{function_name(fn)} {found}, but a task returns TaskResult[T, TaskError], where T is the type of its value on success; "
        f"write it like `def {function_name(fn)}(...) -> TaskResult[int, TaskError]`"
    )


def function_name(fn: Callable[..., object]) -> str:
    return getattr(fn, "__name__", None) or repr(fn)


def display_type(tp: Any) -> str:
    return tp.__name__ if isinstance(tp, type) and not get_args(tp) else str(tp)
