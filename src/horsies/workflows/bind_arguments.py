"""The arguments of a node: bound to the task's signature, encoded as far as they are known, with a note where the rest comes from."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Protocol, cast

from pydantic_core import to_json

from horsies.model.codec import ArgumentsCodec
from horsies.model.errors import PayloadError, TaskDefinitionError
from horsies.model.graph import NodeKind, Ref, RefMode, Step
from horsies.model.payload_errors import MOST_BYTES, PayloadLimits, PayloadSizeCheck
from horsies.model.signature import InjectedParameter
from horsies.model.type_compat import inside, is_assignable, item_of, takes_result, type_name
from horsies.tasks.nodes import AnyNode, Reference, TaskNode

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_SCALARS = frozenset({str, int, float, bool, type(None)})
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


_OF_ITEMS = PayloadSizeCheck("the list of each()", PayloadLimits(warning_bytes=None, max_bytes=MOST_BYTES))
"""It is not one payload: each item goes to a task of its own."""


class Edges(Protocol):
    """The graph around a node."""

    def type_of(self, flow: Reference) -> Any:
        """What flows; Any if that is not known, or is a problem of its own."""
        ...

    def ref(self, path: tuple[Step, ...], flow: Reference) -> Ref: ...

    def name_of(self, flow: Reference) -> str: ...


@dataclass(slots=True)
class BoundArguments:
    """What became of the arguments."""

    text: str = "{}"
    refs: list[Ref] = field(default_factory=list[Ref])
    items: str | None = None
    """The list that was given to `each`, as JSON."""
    problems: list[str] = field(default_factory=list[str])


def flow_from(source: AnyNode[Any], node: object, wanted: Any) -> Reference:
    """What `args_from` means by a node, if `node` is that one: its whole result where the annotation asks for one; of a map all results where it asks for
    a list of them; its value otherwise.
    """
    if takes_result(wanted):
        return Reference(source, RefMode.RESULT)
    item = item_of(wanted)
    if is_map(node) and item is not None and takes_result(item[0]):
        return Reference(source, RefMode.RESULTS)
    return Reference(source, RefMode.VALUE)


def is_map(node: object) -> bool:
    return isinstance(node, TaskNode) and node.kind is NodeKind.MAP


def flows_in(value: object) -> Iterator[Reference]:
    """Those in lists and dicts. Elsewhere, in a model for instance, one is refused like any other value that does not fit."""
    match value:
        case Reference():
            yield value
        case list() | tuple():
            yield from _flows_among(cast("Sequence[object]", value))
        case dict() | MappingProxyType() | Mapping():  # the first two are found without asking
            yield from _flows_among(cast("Mapping[object, object]", value).values())
        case _:
            return


def _flows_among(items: Iterable[object]) -> Iterator[Reference]:
    for item in items:
        if type(item) not in _SCALARS:
            yield from flows_in(item)


def bind_arguments(
    codec: ArgumentsCodec, args: Sequence[Any], kwargs: Mapping[str, Any], edges: Edges
) -> BoundArguments:
    done = BoundArguments()
    given = _bound(codec, args, kwargs, done.problems)
    waiting = {name: value for name, value in given.items() if any(flows_in(value))}
    members = _known(codec, {name: value for name, value in given.items() if name not in waiting}, done.problems)
    for name, value in waiting.items():
        piece = _written(codec, value, _annotation(codec.signature.parameters[name]), (name,), edges, done)
        members.append(f"{to_json(name).decode()}:{piece}")
    done.text = f"{{{','.join(members)}}}"
    return done


def argument_type(codec: ArgumentsCodec, name: str) -> Any:
    """The annotation of a parameter that can be given by name; Any if there is none such."""
    parameters = codec.signature.parameters
    if name in parameters:
        return _annotation(parameters[name])
    return _one(parameters[codec.var_keyword]) if codec.var_keyword else Any


def _bound(
    codec: ArgumentsCodec, args: Sequence[Any], kwargs: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
    """By parameter. Unlike `Signature.bind`, with every problem and not only the first."""
    if (quickly := codec.bind_by_name(args, kwargs)) is not None:
        return quickly
    parameters = codec.signature.parameters
    positional = [parameter.name for parameter in parameters.values() if parameter.kind in _POSITIONAL]
    given: dict[str, Any] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional):
        if codec.var_positional:
            given[codec.var_positional] = tuple(args[len(positional) :])
        else:
            problems.append(f"{codec.name}() takes {len(positional)} positional arguments, not {len(args)}")
    for name, value in kwargs.items():
        _take(codec, name, value, given, problems)
    problems.extend(f"argument '{name}' is missing" for name in _required(parameters) if name not in given)
    return given


def _take(codec: ArgumentsCodec, name: str, value: Any, given: dict[str, Any], problems: list[str]) -> None:
    parameters = codec.signature.parameters
    if name in parameters and parameters[name].kind in _BY_NAME:
        if name in given:
            problems.append(f"argument '{name}' is given twice")
        given[name] = value
    elif codec.var_keyword:
        given.setdefault(codec.var_keyword, {})[name] = value
    else:
        problems.append(_unknown(codec, name))


def _required(parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in _VARIABLE:
            yield name


def _unknown(codec: ArgumentsCodec, name: str) -> str:
    if name in set(InjectedParameter):
        return f"argument '{name}' is filled in by the workflow; leave it out"
    names = [parameter.name for parameter in codec.signature.parameters.values() if parameter.kind in _BY_NAME]
    close = get_close_matches(name, names, n=1)
    advice = f"did you mean '{close[0]}'?" if close else f"it takes {', '.join(names) or 'none'}"
    return f"{codec.name}() has no argument '{name}'; {advice}"


def _known(codec: ArgumentsCodec, given: Mapping[str, Any], problems: list[str]) -> list[str]:
    """The members of the JSON object that can be written now."""
    try:
        text = codec.encode_partial(given)
    except PayloadError as error:
        problems.extend(_reasons(error))
        return []
    return [text[1:-1]] if text != "{}" else []


def _written(
    codec: ArgumentsCodec, value: object, wanted: Any, path: tuple[Step, ...], edges: Edges, done: BoundArguments
) -> str:
    match value:
        case Reference(is_literal=True):
            done.items = _items(codec, value.source, wanted, path, done.problems)
            done.refs.append(edges.ref(path, value))
            return "null"
        case Reference():
            _check(value, wanted, path, edges, done.problems)
            done.refs.append(edges.ref(path, value))
            return "null"
        case list() | tuple() if any(flows_in(cast("object", value))):
            items = enumerate(cast("Sequence[object]", value))
            pieces = [_written(codec, item, inside(wanted, at), (*path, at), edges, done) for at, item in items]
            return f"[{','.join(pieces)}]"
        case Mapping() if any(flows_in(cast("object", value))):
            members = cast("Mapping[object, object]", value).items()
            return f"{{{','.join(_members(codec, members, wanted, path, edges, done))}}}"
        case _:
            try:
                return codec.encode_element(wanted, value, _place(path))
            except (PayloadError, TaskDefinitionError) as error:
                done.problems.extend(_reasons(error))
                return "null"


def _items(codec: ArgumentsCodec, given: object, wanted: Any, path: tuple[Step, ...], problems: list[str]) -> str:
    """The list of `each([...])` as JSON, by the annotation of where one item of it stands."""
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        problems.append(f"each() goes through a list, or through the list of a node, but not through {given!r:.80}")
        return "[]"
    items = list(cast("Sequence[object]", given))
    if any(flows_in(items)):
        problems.append(
            "each([...]) goes through values; let a node return the list if its items come from other nodes"
        )
    else:
        try:
            return codec.encode_element(list[wanted], items, _place(path), _OF_ITEMS)
        except (PayloadError, TaskDefinitionError) as error:
            problems.extend(_reasons(error))
    return "[]"


def _members(
    codec: ArgumentsCodec, members: Any, wanted: Any, path: tuple[Step, ...], edges: Edges, done: BoundArguments
) -> Iterator[str]:
    for key, item in members:
        if not isinstance(key, str):
            done.problems.append(f"argument '{_place(path)}' has the key {key!r}; where values flow, keys are texts")
            continue
        yield f"{to_json(key).decode()}:{_written(codec, item, inside(wanted, key), (*path, key), edges, done)}"


def _check(flow: Reference, wanted: Any, path: tuple[Step, ...], edges: Edges, problems: list[str]) -> None:
    produced = edges.type_of(flow)
    if not is_assignable(produced, wanted):
        problems.append(
            f"argument '{_place(path)}' takes {type_name(wanted)}, but {edges.name_of(flow)} gives {type_name(produced)}"
        )


def _annotation(parameter: inspect.Parameter) -> Any:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            return tuple[_one(parameter), ...]
        case inspect.Parameter.VAR_KEYWORD:
            return dict[str, _one(parameter)]
        case _:
            return _one(parameter)


def _one(parameter: inspect.Parameter) -> Any:
    return Any if parameter.annotation is parameter.empty else parameter.annotation


def _place(path: tuple[Step, ...]) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps.removeprefix(".")


def _reasons(error: Exception) -> list[str]:
    first, *reasons = str(error).split("\n  - ")
    return reasons or [first]
