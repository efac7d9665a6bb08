"""Read what a function takes and returns from its annotations, before any codec is built.

Most tasks are plain functions whose parameters can all be passed by name. For these, everything is read from the function and its code
object. All other callables are read by `inspect`, which takes a tenth of a child's start to load: it is imported only when it is needed.
"""

import types
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from horsies.model.errors import TaskDefinitionError
from horsies.model.record import Record
from horsies.model.result import TaskError, TaskResult

if TYPE_CHECKING:
    import inspect

# Bits of `co_flags`, as `inspect` names them.
_VARARGS: Final = 0x04
_VARKEYWORDS: Final = 0x08
_COROUTINE: Final = 0x80

_MISSING: Final = object()


class InjectedParameter(StrEnum):
    """A parameter that a workflow fills in when the task runs. Callers do not pass it."""

    CONTEXT = "workflow_ctx"
    META = "workflow_meta"


class Parameter(Record):
    """A parameter that can be passed by name."""

    name: str
    annotation: Any
    """`Any` for a parameter without an annotation."""
    is_required: bool
    is_positional: bool
    """It can be passed by position as well."""


class Parameters(Record):
    """The parameters of a function: those that callers pass, and those that a workflow fills in."""

    simple: tuple[Parameter, ...] | None
    """All that callers pass; None if some of them cannot be passed by name."""
    positional: tuple[tuple[str, Any], ...] = ()
    """Those that must be passed by position, with their defaults."""
    var_positional: str | None = None
    var_keyword: str | None = None
    wants: frozenset[InjectedParameter] = frozenset()
    needs: frozenset[InjectedParameter] = frozenset()
    """Those of `wants` without a default: outside a workflow the task cannot run."""


def parameters_of(fn: Callable[..., object]) -> Parameters:
    """Read the parameters of a function, without `inspect` if that is possible."""
    if not is_simple(fn) or set(InjectedParameter) & set(_parameter_names(fn)):
        return parameters_by_inspect(fn)
    names, annotations, place_count = _parameter_names(fn), _annotations(fn), fn.__code__.co_argcount
    defaults = {*names[place_count - len(fn.__defaults__ or ()) : place_count], *(fn.__kwdefaults__ or ())}
    simple = tuple(
        Parameter(
            name=name,
            annotation=_resolve(fn, f"parameter '{name}'", annotations.get(name, Any), fn.__globals__),
            is_required=name not in defaults,
            is_positional=place < place_count,
        )
        for place, name in enumerate(names)
    )
    return Parameters(simple=simple)


def parameters_by_inspect(fn: Callable[..., object]) -> Parameters:
    """Read the parameters of any callable."""
    signature, injected = _split_injected(fn, signature_of(fn))
    parameters = tuple(signature.parameters.values())
    var_positional = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), None)
    var_keyword = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), None)
    # A parameter before *args cannot be passed by name once there are more positional arguments.
    positional = [
        each
        for each in parameters
        if each.kind is each.POSITIONAL_ONLY or (var_positional and each.kind is each.POSITIONAL_OR_KEYWORD)
    ]
    simple = tuple(
        Parameter(
            name=each.name,
            annotation=Any if each.annotation is each.empty else each.annotation,
            is_required=each.default is each.empty,
            is_positional=each.kind is each.POSITIONAL_OR_KEYWORD,
        )
        for each in parameters
    )
    return Parameters(
        simple=None if positional or var_positional or var_keyword else simple,
        positional=tuple((each.name, each.default) for each in positional),
        var_positional=var_positional,
        var_keyword=var_keyword,
        wants=frozenset(injected),
        needs=frozenset(name for name, each in injected.items() if each.default is each.empty),
    )


def ok_type(fn: Callable[..., object]) -> Any:
    """Return the T of a function that returns `TaskResult[T, TaskError]`; any other function cannot be a task."""
    if is_simple(fn):
        returned = _annotations(fn).get("return", _MISSING)
        if returned is not _MISSING:
            returned = _resolve(fn, "the return annotation", returned, fn.__globals__)
    else:
        signature = signature_of(fn)
        returned = _MISSING if signature.return_annotation is signature.empty else signature.return_annotation
    arguments = get_args(returned)
    if get_origin(returned) is TaskResult and arguments[1] is TaskError and not isinstance(arguments[0], TypeVar):
        return arguments[0]
    found = "has no return annotation" if returned is _MISSING else f"returns {display_type(returned)}"
    raise TaskDefinitionError(
        f"{function_name(fn)} {found}, but a task returns TaskResult[T, TaskError], where T is the type of its value on success; "
        f"write it like `def {function_name(fn)}(...) -> TaskResult[int, TaskError]`"
    )


def is_coroutine_function(fn: Callable[..., object]) -> TypeGuard[Callable[..., Coroutine[Any, Any, Any]]]:
    if is_simple(fn):
        return bool(fn.__code__.co_flags & _COROUTINE)
    import inspect  # noqa: PLC0415 - see the module docstring

    return inspect.iscoroutinefunction(fn)


def takes_no_arguments(fn: Callable[..., object]) -> bool:
    """Return whether a callable can be called without arguments."""
    if is_simple(fn) and not _parameter_names(fn):
        return True
    import inspect  # noqa: PLC0415 - see the module docstring

    try:
        inspect.signature(fn).bind()
    except TypeError:
        return False
    return True


def is_simple(fn: Callable[..., object]) -> TypeGuard[types.FunctionType]:
    """Return whether this is a function, and not a wrapper of another one, all of whose parameters can be passed by name."""
    if type(fn) is not types.FunctionType or vars(fn):
        return False
    return not (fn.__code__.co_flags & (_VARARGS | _VARKEYWORDS) or fn.__code__.co_posonlyargcount)


def signature_of(fn: Callable[..., object]) -> "inspect.Signature":
    """Return the signature with every annotation resolved, also those that are written as strings."""
    import inspect  # noqa: PLC0415 - see the module docstring

    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError, NameError) as error:
        raise _unreadable(fn, error) from error
    namespace = getattr(inspect.unwrap(fn), "__globals__", {})
    parameters = [
        each.replace(annotation=_resolve(fn, f"parameter '{each.name}'", each.annotation, namespace))
        for each in signature.parameters.values()
    ]
    returned = _resolve(fn, "the return annotation", signature.return_annotation, namespace)
    return signature.replace(parameters=parameters, return_annotation=returned)


def callers_signature(fn: Callable[..., object]) -> "inspect.Signature":
    """Return the resolved signature without the parameters that a workflow fills in."""
    return _split_injected(fn, signature_of(fn))[0]


def function_name(fn: Callable[..., object]) -> str:
    return getattr(fn, "__name__", None) or repr(fn)


def display_type(tp: Any) -> str:
    return tp.__name__ if isinstance(tp, type) and not get_args(tp) else str(tp)


def _parameter_names(fn: types.FunctionType) -> tuple[str, ...]:
    code = fn.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _annotations(fn: types.FunctionType) -> Mapping[str, Any]:
    try:
        return fn.__annotations__
    except NameError as error:  # from Python 3.14 on, annotations are evaluated here
        raise _unreadable(fn, error) from error


def _resolve(fn: Callable[..., object], what: str, annotation: Any, namespace: dict[str, Any]) -> Any:
    """Return the type that an annotation stands for, also if it is written as a string."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(holder, globalns=namespace, include_extras=True)["it"]
    except Exception as error:  # a string annotation is evaluated, so it can raise anything
        raise TaskDefinitionError(
            f"{function_name(fn)}: {what} {annotation!r} cannot be resolved: {error}; "
            "define or import its names at module level, and not under TYPE_CHECKING"
        ) from error


def _unreadable(fn: Callable[..., object], error: Exception) -> TaskDefinitionError:
    return TaskDefinitionError(f"{function_name(fn)}: its signature cannot be read: {error}")


def _split_injected(
    fn: Callable[..., object], signature: "inspect.Signature"
) -> "tuple[inspect.Signature, dict[InjectedParameter, inspect.Parameter]]":
    """Return the signature as callers see it, and the parameters that a workflow fills in."""
    injected = {
        InjectedParameter(name): signature.parameters[name]
        for name in InjectedParameter
        if name in signature.parameters
    }
    if not injected:
        return signature, {}
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
