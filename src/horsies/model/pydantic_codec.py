"""Annotations turned into pydantic adapters.

`Any`, `object` and a missing annotation mean "a JSON value and nothing else". pydantic would take anything there and
write it as best it can, and a datetime would arrive as a string: here it is refused, with the advice to annotate it.
Inside the fields of a model or a dataclass pydantic's own rules hold.
"""

import inspect
import json
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import CoreSchema, PydanticCustomError, PydanticSerializationError
from typing_extensions import TypeAliasType, TypedDict, is_typeddict

from horsies.model.errors import PayloadError, TaskDefinitionError
from horsies.model.payload_errors import (
    NOT_JSON,
    UNWRITABLE,
    PayloadSizeCheck,
    ProblemReport,
    ValueChange,
    one_line,
    report_change,
    report_problems,
    with_advice,
)
from horsies.model.roundtrip import find_change, is_equality_exact
from horsies.model.signature import display_type

# --------
# Payloads by way of pydantic: a value checked and written as JSON, a JSON text read and checked, and why not, in words.


@dataclass(frozen=True, slots=True)
class Adapter:
    """Writes and reads the values of one annotation."""

    by_type: TypeAdapter[Any]
    trusts_equality: bool
    """`==` tells whether a value has changed; otherwise it is compared part by part."""

    def write(
        self, value: object, what: str, telling: ProblemReport, mismatch: type[PayloadError], watch: PayloadSizeCheck
    ) -> str:
        checked = self._checked(value, what, telling, mismatch)
        payload = self._dumped(checked, what)
        watch.look(payload, what)
        arrived = self.read(payload, f"{what}: it could be written as JSON, but not read back", telling)
        if found := self._change(value, checked, arrived, payload):
            raise PayloadError(
                f"{what}: it could be written as JSON, but would arrive changed:\n  - {report_change(telling, found)}"
            )
        return payload.decode()

    def _change(self, given: object, checked: object, arrived: object, payload: bytes) -> ValueChange | None:
        if self.trusts_equality and _is_equal(given, arrived):
            return None
        is_same_json = cache(lambda: self._is_written_as(arrived, payload))
        return find_change(given, checked, arrived, is_same_json)

    def _is_written_as(self, value: object, payload: bytes) -> bool:
        try:
            return self._dumped(value, "") == payload
        except PayloadError:
            return False

    def read(self, text: str | bytes, what: str, telling: ProblemReport) -> Any:
        try:
            return self.by_type.validator.validate_json(text, by_alias=False, by_name=True)
        except ValidationError as error:
            raise PayloadError(report_problems(what, telling, error.errors(include_url=False))) from None
        except Exception as error:  # a validator of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def schemas(self) -> list[str]:
        """What its JSON must be like, to be compared with that of another; nothing where no schema can say it."""
        try:
            return [json.dumps(self.by_type.json_schema(by_alias=False), sort_keys=True)]
        except Exception:  # noqa: BLE001 - pydantic has no schema for some types, and runs the hooks of the user's own
            return []

    def _checked(self, value: object, what: str, telling: ProblemReport, mismatch: type[PayloadError]) -> Any:
        try:
            return self.by_type.validator.validate_python(value, strict=True, by_alias=False, by_name=True)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            kind = PayloadError if all(problem["type"] in UNWRITABLE for problem in problems) else mismatch
            raise kind(report_problems(what, telling, problems)) from None
        except Exception as error:  # a validator of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def _dumped(self, checked: object, what: str) -> bytes:
        try:
            return self.by_type.serializer.to_json(checked, warnings="error", round_trip=True, by_alias=False)
        except PydanticSerializationError as error:
            raise PayloadError(f"{what}: {with_advice(error)}") from None
        except Exception as error:  # a serializer of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error


def _is_equal(given: object, arrived: object) -> bool:
    try:
        return (given == arrived) is True
    except Exception:  # noqa: BLE001 - an == of the user's own
        return False


MAX_DEPTH: Final = 180  # the JSON parser stops at 200, and the payload has levels of its own

_CONFIG: Final = ConfigDict(
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="strings",
    revalidate_instances="always",  # nothing else ever checks the fields of a plain dataclass
)


def arguments_adapter(function_name: str, parameters: Mapping[str, inspect.Parameter]) -> Adapter:
    """One adapter for all arguments together: a dict by parameter name."""
    adapter = _arguments_adapter(function_name, parameters)
    for name, parameter in parameters.items():
        _refuse_secrets(parameter.annotation, f"{function_name}: parameter '{name}'")
    return adapter


def _arguments_adapter(function_name: str, parameters: Mapping[str, inspect.Parameter]) -> Adapter:
    try:
        return _dict_adapter(parameters)
    except Exception:  # pydantic runs the schema hooks of the user's own types
        for name, parameter in parameters.items():  # now one by one, to find out which it is
            try:
                _dict_adapter({name: parameter})
            except Exception as error:
                shown = display_type(parameter.annotation)
                raise _cannot_be_encoded(f"{function_name}: parameter '{name}' is annotated {shown}", error) from error
        raise


def value_adapter(tp: Any, what: str) -> Adapter:
    try:
        adapter = _adapter(json_where_any(tp))
    except Exception as error:  # pydantic runs the schema hooks of the user's own types
        raise _cannot_be_encoded(f"{what} is annotated {display_type(tp)}", error) from error
    _refuse_secrets(tp, what)
    return adapter


def json_where_any(tp: Any) -> Any:
    """The same annotation with `AnyJson` wherever it says `Any`, or leaves it open as a bare `list` does.

    A type variable stands for its bound or its constraints. An `Iterable` is read as a list: pydantic would give the task an iterator.
    """
    for never, why in _NEVER_JSON:
        if tp is never or get_origin(tp) is never:
            raise TypeError(why)
    for open_type, closed in _OPEN_TYPES:
        if tp is open_type:
            return closed
    if isinstance(tp, TypeVar):
        return json_where_any(Union[tp.__constraints__] if tp.__constraints__ else tp.__bound__ or Any)  # noqa: UP007 - a tuple of types
    origin, arguments = get_origin(tp), get_args(tp)
    if origin is Literal or not arguments:
        return tp
    if origin is Annotated:
        return Annotated[(json_where_any(arguments[0]), *arguments[1:])]
    return _with_arguments(tp, list if origin is Iterable else origin, arguments)


def _with_arguments(tp: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    inner = tuple(argument if argument is Ellipsis else json_where_any(argument) for argument in arguments)
    if inner == arguments and origin is get_origin(tp):
        return tp
    return Union[inner] if origin in {Union, types.UnionType} else origin[inner]  # noqa: UP007 - a tuple of types


def _dict_adapter(parameters: Mapping[str, inspect.Parameter]) -> Adapter:
    make_typed_dict = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)
    arguments = make_typed_dict("Arguments", {name: _field_type(parameter) for name, parameter in parameters.items()})
    return _adapter(Annotated[arguments, _NoOtherKeys()])


def _adapter(tp: Any) -> Adapter:
    # A dataclass, a model or a TypedDict at the root refuses a configuration; behind an alias it takes it.
    alias: Any = TypeAliasType("Payload", tp)  # pyright: ignore[reportGeneralTypeIssues]
    adapter: TypeAdapter[Any] = TypeAdapter(alias, config=_CONFIG)
    return Adapter(adapter, is_equality_exact(adapter.core_schema, lambda function: function is _json_only))


def _field_type(parameter: inspect.Parameter) -> Any:
    annotation = json_where_any(Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation)
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            return NotRequired[tuple[annotation, ...]]
        case inspect.Parameter.VAR_KEYWORD:
            return NotRequired[dict[str, annotation]]
        case _:
            return annotation if parameter.default is inspect.Parameter.empty else NotRequired[annotation]


class _NoOtherKeys:
    """Closes the dict of arguments alone; `extra="forbid"` in the configuration would reach into user types."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        cast("dict[str, Any]", handler.resolve_ref_schema(schema))["extra_behavior"] = "forbid"
        return schema


def _cannot_be_encoded(what: str, error: Exception) -> TaskDefinitionError:
    why = "" if isinstance(error, PydanticSchemaGenerationError) else f" ({str(error).splitlines()[0]})"
    return TaskDefinitionError(
        f"{what}, which cannot be encoded{why}; use a type that pydantic can write as JSON and read"
    )


def _refuse_secrets(tp: Any, what: str) -> None:
    found = next(_secrets_in(tp, (), {}), None)
    if found is not None:
        path, kind = found
        where = f", and its field '{'.'.join(path)}' is a {kind}" if path else ""
        raise TaskDefinitionError(
            f"{what} is annotated {display_type(tp)}{where}, which cannot be encoded: a secret is written as asterisks; "
            "pass what the task can read the secret by, such as its name or an id, "
            "or a str or bytes if it may be stored in the database as it is"
        )


def _secrets_in(tp: Any, path: tuple[str, ...], seen: dict[int, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every place within a type where there is one of pydantic's secrets, with its type."""
    kind = get_origin(tp) or tp
    if isinstance(kind, type) and issubclass(kind, Secret | SecretStr | SecretBytes):
        yield path, display_type(tp)
    elif id(tp) not in seen:  # types may contain themselves
        seen[id(tp)] = tp  # and keeps it: the id of one that is gone may be given again
        for inner in _types_in(tp, kind):
            yield from _secrets_in(inner, path, seen)
        for name, inner in _field_types(kind).items():
            yield from _secrets_in(inner, (*path, name), seen)


def _types_in(tp: Any, kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, TypeVar):
        return (kind.__bound__, *kind.__constraints__)
    if isinstance(kind, NewType):
        return (cast("Any", kind).__supertype__,)
    own = (kind.__value__,) if type(kind).__name__ == "TypeAliasType" else ()  # Python's, or that of typing_extensions
    return () if kind is Literal else (*own, *get_args(tp))


def _field_types(kind: Any) -> Mapping[str, Any]:
    """Return the annotations of a model, a dataclass, a TypedDict or a NamedTuple."""
    if _is_model(kind):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields"):
        # Names that pydantic has found and this does not: what is there is compared when it is sent.
        with suppress(Exception):
            return get_type_hints(kind, include_extras=True)
    return {}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _json_only(value: object, info: ValidationInfo) -> object:
    if info.mode == "python" and (why := _not_json(value, "", MAX_DEPTH)):
        raise PydanticCustomError(NOT_JSON, "{why}", {"why": why})
    return value


def _not_json(value: object, path: str, depth: int) -> str | None:
    """Why a value is no JSON value, or None. Recursion has a bound, so a value that contains itself ends here too."""
    why = None
    match value:
        case Enum():
            why = f"a {type(value).__name__}{path} is no JSON value; annotate it with its type to send it"
        case float() if not math.isfinite(value):
            why = f"{value}{path} is no JSON value; annotate it as float to send it"
        case None | str() | int() | float():
            pass
        case list() | dict() if depth == 0:
            why = f"it is nested more than {MAX_DEPTH} levels deep, or contains itself"
        case list() | dict():
            items = _items(cast("list[object] | dict[object, object]", value), path or " at ")
            why = next((found for inner, item in items if (found := _not_json(item, inner, depth - 1))), None)
        case _Key(key):
            why = f"the key {key!r:.80}{path} is no string; annotate the dict with the type of its keys to send it"
        case _:
            why = f"a {type(value).__name__}{path} is no JSON value; annotate it with its type to send it"
    return why


@dataclass(frozen=True, slots=True)
class _Key:
    """A dict's key where only a string is allowed."""

    key: object


def _items(value: list[object] | dict[object, object], path: str) -> Iterator[tuple[str, object]]:
    """What is inside, each with the path to it."""
    if isinstance(value, list):
        yield from ((f"{path}[{position}]", item) for position, item in enumerate(value))
        return
    for key, item in value.items():
        if not isinstance(key, str):
            yield path, _Key(key)
        yield f"{path}[{key!r:.40}]", item


AnyJson = Annotated[Any, AfterValidator(_json_only)]

# Compared by identity: an annotation need not be hashable.
_OPEN_TYPES: Final[tuple[tuple[Any, Any], ...]] = (
    (Any, AnyJson),
    (object, AnyJson),
    (list, list[AnyJson]),
    (Iterable, list[AnyJson]),
    (dict, dict[str, AnyJson]),
    (tuple, tuple[AnyJson, ...]),
    (set, set[AnyJson]),
    (frozenset, frozenset[AnyJson]),
)
_NEVER_JSON: Final[tuple[tuple[Any, str], ...]] = (
    (get_origin(Callable[[], None]), "a function cannot be sent"),
    (type, "a class cannot be sent"),
)
