"""Bind the arguments of a node to the signature of its task, and encode those that are known.

References to other nodes become null in the JSON. For each there is a `Ref` with its path and its source.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, cast

from pydantic_core import to_json

from horsies.model.codec import ArgumentsCodec
from horsies.model.errors import PayloadError, TaskDefinitionError
from horsies.model.graph import NodeKind, Ref, RefMode, Step
from horsies.model.payload_errors import MOST_BYTES, PayloadLimits, PayloadSizeCheck
from horsies.model.signature import InjectedParameter
from horsies.model.type_compat import is_assignable, item_type, list_item_type, takes_result, type_name
from horsies.tasks.nodes import AnyNode, Reference, TaskNode
from horsies.workflows.validate import Scope

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_SCALARS = frozenset({str, int, float, bool, type(None)})

# The list is not one payload, because each item becomes an argument of a task of its own.
_ITEMS_CHECK = PayloadSizeCheck("the list of each()", PayloadLimits(warning_bytes=None, max_bytes=MOST_BYTES))


class BoundArguments:
    """The arguments of one node: `text` is their JSON, `refs` the references in it, `items` the JSON of a list that was given to `each`."""

    def __init__(self, codec: ArgumentsCodec, args: Sequence[Any], kwargs: Mapping[str, Any], scope: Scope) -> None:
        self.refs: list[Ref] = []
        self.items: str | None = None
        self.problems: list[str] = []
        self._codec = codec
        self._scope = scope
        values = self._bind(args, kwargs)
        open_values = {name: value for name, value in values.items() if any(find_references(value))}
        try:
            known = codec.encode_partial({name: value for name, value in values.items() if name not in open_values})
        except PayloadError as error:
            self._report(error)
            known = "{}"
        members = [known[1:-1]] if known != "{}" else []
        for name, value in open_values.items():
            annotation = _annotation_of(codec.signature.parameters[name])
            members.append(f"{to_json(name).decode()}:{self._encode(value, annotation, (name,))}")
        self.text = f"{{{','.join(members)}}}"

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values by parameter. Unlike `Signature.bind`, report every problem and not only the first."""
        codec = self._codec
        if (values := codec.bind_by_name(args, kwargs)) is not None:
            return values
        parameters = codec.signature.parameters
        positional = [parameter.name for parameter in parameters.values() if parameter.kind in _POSITIONAL]
        values = dict(zip(positional, args, strict=False))
        if len(args) > len(positional):
            if codec.var_positional:
                values[codec.var_positional] = tuple(args[len(positional) :])
            else:
                self.problems.append(f"{codec.name}() takes {len(positional)} positional arguments, not {len(args)}")
        for name, value in kwargs.items():
            if name in parameters and parameters[name].kind in _BY_NAME:
                if name in values:
                    self.problems.append(f"argument '{name}' is given twice")
                values[name] = value
            elif codec.var_keyword:
                values.setdefault(codec.var_keyword, {})[name] = value
            else:
                self.problems.append(self._unknown_argument_problem(name))
        self.problems.extend(
            f"argument '{name}' is missing"
            for name, parameter in parameters.items()
            if name not in values and parameter.default is parameter.empty and parameter.kind not in _VARIABLE
        )
        return values

    def _unknown_argument_problem(self, name: str) -> str:
        if name in set(InjectedParameter):
            return f"argument '{name}' is filled in by the workflow; leave it out"
        parameters = self._codec.signature.parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind in _BY_NAME]
        close = get_close_matches(name, names, n=1)
        advice = f"did you mean '{close[0]}'?" if close else f"it takes {', '.join(names) or 'none'}"
        return f"{self._codec.name}() has no argument '{name}'; {advice}"

    def _encode(self, value: object, annotation: Any, path: tuple[Step, ...]) -> str:
        match value:
            case Reference():
                if value.is_literal:
                    self.items = self._encode_items(value.source, annotation, path)
                elif not is_assignable(produced := self._scope.type_of(value), annotation):
                    gives = f"{self._scope.source_name(value)} gives {type_name(produced)}"
                    self.problems.append(f"argument '{_path_text(path)}' takes {type_name(annotation)}, but {gives}")
                self.refs.append(self._scope.to_ref(path, value))
                return "null"
            case list() | tuple() if any(find_references(cast("object", value))):
                items = enumerate(cast("Sequence[object]", value))
                return f"[{','.join(self._encode(item, item_type(annotation, at), (*path, at)) for at, item in items)}]"
            case Mapping() if any(find_references(cast("object", value))):
                members = cast("Mapping[object, object]", value)
                return f"{{{','.join(self._encode_members(members, annotation, path))}}}"
            case _:
                try:
                    return self._codec.encode_element(annotation, value, _path_text(path))
                except (PayloadError, TaskDefinitionError) as error:
                    self._report(error)
                    return "null"

    def _encode_items(self, items: object, annotation: Any, path: tuple[Step, ...]) -> str:
        """Encode the list of `each([...])` by the annotation that stands where one item of it goes."""
        if isinstance(items, str | bytes | bytearray) or not isinstance(items, Sequence):
            self.problems.append(f"each() needs a list, or a node that returns one, not {items!r:.80}")
            return "[]"
        items = list(cast("Sequence[object]", items))
        if any(find_references(items)):
            self.problems.append("each([...]) takes values, not references; let a node return the list instead")
            return "[]"
        try:
            return self._codec.encode_element(list[annotation], items, _path_text(path), _ITEMS_CHECK)
        except (PayloadError, TaskDefinitionError) as error:
            self._report(error)
            return "[]"

    def _encode_members(
        self, members: Mapping[object, object], annotation: Any, path: tuple[Step, ...]
    ) -> Iterator[str]:
        for key, item in members.items():
            if isinstance(key, str):
                yield f"{to_json(key).decode()}:{self._encode(item, item_type(annotation, key), (*path, key))}"
            else:
                self.problems.append(
                    f"argument '{_path_text(path)}' has the key {key!r}; in a dict with references, keys must be strings"
                )

    def _report(self, error: Exception) -> None:
        """Add each problem of an error that lists several."""
        first, *listed = str(error).split("\n  - ")
        self.problems.extend(listed or [first])


def find_references(value: object) -> Iterator[Reference]:
    """Find references in lists and dicts. Elsewhere, for example in a model, a reference is rejected like any value of a wrong type."""
    match value:
        case Reference():
            yield value
            return
        case list() | tuple():
            items = cast("Sequence[object]", value)
        case (
            dict() | MappingProxyType() | Mapping()
        ):  # the first two are matched without the slow check of an abstract class
            items = cast("Mapping[object, object]", value).values()
        case _:
            return
    for item in items:
        if type(item) not in _SCALARS:
            yield from find_references(item)


def reference_by_annotation(source: AnyNode[Any], node: object, annotation: Any) -> Reference:
    """Return what `args_from` means by a source: its result if the parameter is annotated as one, all results of a map if it is annotated as
    a list of them, its value otherwise. `node` is the node that the source stands for.
    """
    if takes_result(annotation):
        return Reference(source, RefMode.RESULT)
    item = list_item_type(annotation)
    if is_map(node) and item is not None and takes_result(item[0]):
        return Reference(source, RefMode.RESULTS)
    return Reference(source, RefMode.VALUE)


def is_map(node: object) -> bool:
    return isinstance(node, TaskNode) and node.kind is NodeKind.MAP


def argument_type(codec: ArgumentsCodec, name: str) -> Any:
    """Return the annotation of a parameter that can be passed by name, or Any if there is none."""
    parameters = codec.signature.parameters
    if name in parameters:
        return _annotation_of(parameters[name])
    return _item_annotation_of(parameters[codec.var_keyword]) if codec.var_keyword else Any


def _annotation_of(parameter: inspect.Parameter) -> Any:
    annotation = _item_annotation_of(parameter)
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            return tuple[annotation, ...]
        case inspect.Parameter.VAR_KEYWORD:
            return dict[str, annotation]
        case _:
            return annotation


def _item_annotation_of(parameter: inspect.Parameter) -> Any:
    return Any if parameter.annotation is parameter.empty else parameter.annotation


def _path_text(path: tuple[Step, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
