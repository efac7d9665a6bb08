"""What functions of any kind take and return, by `inspect`: see `annotations.py`."""

import inspect
from collections.abc import Callable
from typing import Any

from horsies.model.errors import TaskDefinitionError
from horsies.model.parameters import Parameter, Parameters, WantedParameter, name_of, resolve_annotation


def signature_of(fn: Callable[..., object]) -> inspect.Signature:
    """The signature with every annotation resolved, also those that are written as strings."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError, NameError) as error:
        raise TaskDefinitionError(f"{name_of(fn)}: its signature cannot be read: {error}") from error
    namespace = getattr(inspect.unwrap(fn), "__globals__", {})

    def with_type(what: str, annotation: Any) -> Any:
        return (
            annotation if annotation is inspect.Parameter.empty else resolve_annotation(fn, what, annotation, namespace)
        )

    parameters = [
        parameter.replace(annotation=with_type(f"parameter '{name}'", parameter.annotation))
        for name, parameter in signature.parameters.items()
    ]
    returned = with_type("the return annotation", signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returned)


def callers_signature(fn: Callable[..., object]) -> inspect.Signature:
    """What callers see of it."""
    return _without_wanted(fn, signature_of(fn))[0]


def parameters_of_any(fn: Callable[..., object]) -> Parameters:
    signature, wanted = _without_wanted(fn, signature_of(fn))
    by_kind: dict[Any, list[inspect.Parameter]] = {}
    for parameter in signature.parameters.values():
        by_kind.setdefault(parameter.kind, []).append(parameter)
    positional = by_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
    rest = by_kind.get(inspect.Parameter.VAR_POSITIONAL)
    if rest:  # a name before *args cannot be given by keyword once there are more positions
        positional = [*positional, *by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])]
    others = by_kind.get(inspect.Parameter.VAR_KEYWORD)
    return Parameters(
        simple=None if positional or rest or others else tuple(map(_simple, signature.parameters.values())),
        positional=tuple((each.name, each.default) for each in positional),
        var_positional=rest[0].name if rest else None,
        var_keyword=others[0].name if others else None,
        wants=frozenset(wanted),
        needs=frozenset(name for name, parameter in wanted.items() if parameter.default is parameter.empty),
    )


def returned_by_any(fn: Callable[..., object], missing: object) -> Any:
    returned = signature_of(fn).return_annotation
    return missing if returned is inspect.Signature.empty else returned


def _simple(parameter: inspect.Parameter) -> Parameter:
    return Parameter(
        name=parameter.name,
        annotation=Any if parameter.annotation is parameter.empty else parameter.annotation,
        is_required=parameter.default is parameter.empty,
        by_place=parameter.kind is parameter.POSITIONAL_OR_KEYWORD,
    )


def _without_wanted(
    fn: Callable[..., object], signature: inspect.Signature
) -> tuple[inspect.Signature, dict[WantedParameter, inspect.Parameter]]:
    """What callers see of a signature, and the parameters that a workflow fills in, which go by keyword."""
    by_keyword = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in signature.parameters.values()):
        by_keyword = {inspect.Parameter.KEYWORD_ONLY}  # what stands before *args is taken by position
    wanted = {
        WantedParameter(name): signature.parameters[name] for name in WantedParameter if name in signature.parameters
    }
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
