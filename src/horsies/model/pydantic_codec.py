"""Encode payloads with pydantic: check and write a value, read it back, and compare the two.

**Open annotations.** `Any`, `object` and a missing annotation mean "a JSON value and nothing else". pydantic would accept anything there and
write it as well as it can, and a datetime would arrive as a string: here it is refused, with the advice to annotate it.
Inside the fields of a model or a dataclass pydantic's own rules apply.

**Comparison.** JSON has strings, numbers and null, so a reader sometimes takes one value for another: NaN in a model becomes null and then
None, an enum member in `Colour | str` becomes its text, the keys 1 and "1" become one. Other types keep less than they hold: excluded
fields, private attributes, serializers that round, subclasses of the annotated class. None of this raises an error on its own.

`==` alone does not detect this. It may be the user's own, or ignore fields (`field(compare=False)`), and in Python True equals 1, and a set
equals a frozenset. `trusts_equality` says, once per annotation, whether `==` is enough. If it is not, or if it returns False, `find_change`
compares part by part:

- models and dataclasses: the same class, the same fields, private attributes and extra values;
- containers: the same type (or a base of it: a `defaultdict` may arrive as a `dict`), the same items;
- all others: the same type or a base of it (a `StrEnum` member may arrive as a `str`), and equal. An int may arrive as an equal float. NaN is the
  same as NaN, and aware datetimes are the same if they are the same instant. An object without an `==` of its own is compared by its attributes;
  one that has none is considered the same if it is written as the same JSON again.
"""

import dataclasses
import inspect
import json
import math
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property, lru_cache
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

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
    MISSING,
    NOT_JSON,
    UNWRITABLE,
    PayloadSizeCheck,
    ReportStyle,
    ValueChange,
    one_line,
    report_change,
    report_problems,
    with_advice,
)
from horsies.model.result import TaskError, TaskResult
from horsies.model.signature import display_type

MAX_DEPTH: Final = 180  # the JSON parser stops at 200, and the payload has levels of its own

_CONFIG: Final = ConfigDict(
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="strings",
    revalidate_instances="always",  # nothing else ever checks the fields of a plain dataclass
)

_SUBCLASS: Final = "annotate the class that is sent, or a union of the classes that a discriminator tells apart"
_ITERATOR: Final = "annotate it as list[...]"
_SEQUENCE: Final = "annotate the type that is sent, such as tuple[int, ...], or send a list"
_EXCLUDED: Final = "it is excluded from the JSON of its model; include the field, or send it as an argument of its own"
_PRIVATE: Final = "private attributes are not part of the JSON; make it a field, or send it as an argument of its own"
_NOT_INIT: Final = (
    "it is not a parameter of its class, so it cannot be restored; use field(init=True), or derive it in __post_init__"
)
_NOT_A_FIELD: Final = "it is not a field of its class; declare it as one"


@dataclasses.dataclass(frozen=True, slots=True)
class Adapter:
    """Write and read the values of one annotation."""

    type_adapter: TypeAdapter[Any]
    trusts_equality: bool
    """`==` is enough to detect a change; otherwise values are compared part by part."""

    def write(
        self, value: object, what: str, style: ReportStyle, mismatch: type[PayloadError], size_check: PayloadSizeCheck
    ) -> str:
        """Encode a value. Raises `mismatch` for a value of another type, PayloadError for one that cannot be sent."""
        checked = self._validate(value, what, style, mismatch)
        payload = self._to_json(checked, what)
        size_check.check(payload, what)
        arrived = self.read(payload, f"{what}: it could be written as JSON, but not read back", style)
        if not (self.trusts_equality and _is_equal(value, arrived)):
            is_same_json = cache(lambda: self._is_written_as(arrived, payload))
            if change := find_change(value, checked, arrived, is_same_json):
                raise PayloadError(
                    f"{what}: it could be written as JSON, but would arrive changed:\n  - {report_change(style, change)}"
                )
        return payload.decode()

    def read(self, text: str | bytes, what: str, style: ReportStyle) -> Any:
        try:
            return self.type_adapter.validator.validate_json(text, by_alias=False, by_name=True)
        except ValidationError as error:
            raise PayloadError(report_problems(what, style, error.errors(include_url=False))) from None
        except Exception as error:  # a validator of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def schemas(self) -> list[str]:
        """Return the JSON schema, to compare it with that of another function; an empty list if there is none."""
        try:
            return [json.dumps(self.type_adapter.json_schema(by_alias=False), sort_keys=True)]
        except Exception:  # noqa: BLE001 - pydantic has no schema for some types, and runs the hooks of the user's own
            return []

    def _validate(self, value: object, what: str, style: ReportStyle, mismatch: type[PayloadError]) -> Any:
        try:
            return self.type_adapter.validator.validate_python(value, strict=True, by_alias=False, by_name=True)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            kind = PayloadError if all(problem["type"] in UNWRITABLE for problem in problems) else mismatch
            raise kind(report_problems(what, style, problems)) from None
        except Exception as error:  # a validator of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def _to_json(self, checked: object, what: str) -> bytes:
        try:
            return self.type_adapter.serializer.to_json(checked, warnings="error", round_trip=True, by_alias=False)
        except PydanticSerializationError as error:
            raise PayloadError(f"{what}: {with_advice(error)}") from None
        except Exception as error:  # a serializer of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def _is_written_as(self, value: object, payload: bytes) -> bool:
        try:
            return self._to_json(value, "") == payload
        except PayloadError:
            return False


def _is_equal(given: object, arrived: object) -> bool:
    try:
        return (given == arrived) is True
    except Exception:  # noqa: BLE001 - an == of the user's own
        return False


# -- adapters by annotation


def arguments_adapter(function_name: str, parameters: Mapping[str, inspect.Parameter]) -> Adapter:
    """Build one adapter for all arguments together: a dict by parameter name."""
    try:
        adapter = _dict_adapter(parameters)
    except Exception:  # pydantic runs the schema hooks of the user's own types
        for name, parameter in parameters.items():  # one by one, to find out which parameter it is
            try:
                _dict_adapter({name: parameter})
            except Exception as error:
                tp = display_type(parameter.annotation)
                raise _not_encodable(f"{function_name}: parameter '{name}' is annotated {tp}", error) from error
        raise
    for name, parameter in parameters.items():
        _refuse_secrets(parameter.annotation, f"{function_name}: parameter '{name}'")
    return adapter


def value_adapter(tp: Any, what: str) -> Adapter:
    """Build the adapter for values of one type."""
    try:
        adapter = _adapter(close_annotation(tp))
    except Exception as error:  # pydantic runs the schema hooks of the user's own types
        raise _not_encodable(f"{what} is annotated {display_type(tp)}", error) from error
    _refuse_secrets(tp, what)
    return adapter


def close_annotation(tp: Any) -> Any:
    """Return the annotation with `AnyJson` in place of every `Any`, and of everything that a bare `list` leaves open.

    A type variable stands for its bound or its constraints. An `Iterable` is read as a list: pydantic would give the task an iterator.
    """
    for never, reason in _NEVER_JSON:
        if tp is never or get_origin(tp) is never:
            raise TypeError(reason)
    for open_type, closed in _OPEN_TYPES:
        if tp is open_type:
            return closed
    if isinstance(tp, TypeVar):
        return close_annotation(Union[tp.__constraints__] if tp.__constraints__ else tp.__bound__ or Any)  # noqa: UP007 - a tuple of types
    origin, arguments = get_origin(tp), get_args(tp)
    if origin is Literal or not arguments:
        return tp
    if origin is Annotated:
        return Annotated[(close_annotation(arguments[0]), *arguments[1:])]
    return _close_arguments(tp, list if origin is Iterable else origin, arguments)


def _close_arguments(tp: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    closed = tuple(argument if argument is Ellipsis else close_annotation(argument) for argument in arguments)
    if closed == arguments and origin is get_origin(tp):
        return tp
    return Union[closed] if origin in {Union, types.UnionType} else origin[closed]  # noqa: UP007 - a tuple of types


def _dict_adapter(parameters: Mapping[str, inspect.Parameter]) -> Adapter:
    make_typed_dict = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)
    arguments = make_typed_dict("Arguments", {name: _field_type(parameter) for name, parameter in parameters.items()})
    return _adapter(Annotated[arguments, _NoOtherKeys()])


def _adapter(tp: Any) -> Adapter:
    # pydantic refuses a configuration for a dataclass, a model or a TypedDict at the root, and accepts it for an alias of one.
    alias: Any = TypeAliasType("Payload", tp)  # pyright: ignore[reportGeneralTypeIssues]
    adapter: TypeAdapter[Any] = TypeAdapter(alias, config=_CONFIG)
    return Adapter(adapter, _is_equality_exact(adapter.core_schema))


def _field_type(parameter: inspect.Parameter) -> Any:
    annotation = close_annotation(Any if parameter.annotation is inspect.Parameter.empty else parameter.annotation)
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            return NotRequired[tuple[annotation, ...]]
        case inspect.Parameter.VAR_KEYWORD:
            return NotRequired[dict[str, annotation]]
        case _:
            return annotation if parameter.default is inspect.Parameter.empty else NotRequired[annotation]


class _NoOtherKeys:
    """Forbid unknown keys in the dict of arguments only; `extra="forbid"` in the configuration would apply to user types too."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        cast("dict[str, Any]", handler.resolve_ref_schema(schema))["extra_behavior"] = "forbid"
        return schema


def _not_encodable(what: str, error: Exception) -> TaskDefinitionError:
    reason = "" if isinstance(error, PydanticSchemaGenerationError) else f" ({str(error).splitlines()[0]})"
    return TaskDefinitionError(
        f"{what}, which cannot be encoded{reason}; use a type that pydantic can write as JSON and read"
    )


def _refuse_secrets(tp: Any, what: str) -> None:
    for path, kind in _secrets_in(tp, (), {}):
        where = f", and its field '{'.'.join(path)}' is a {kind}" if path else ""
        raise TaskDefinitionError(
            f"{what} is annotated {display_type(tp)}{where}, which cannot be encoded: a secret is written as asterisks; "
            "pass a reference by which the task can read the secret, such as its name or an id, "
            "or a str or bytes if it may be stored in the database as it is"
        )


def _secrets_in(tp: Any, path: tuple[str, ...], seen: dict[int, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every place within a type where there is one of pydantic's secrets, with its type."""
    kind = get_origin(tp) or tp
    if isinstance(kind, type) and issubclass(kind, Secret | SecretStr | SecretBytes):
        yield path, display_type(tp)
    elif id(tp) not in seen:  # types may contain themselves
        seen[id(tp)] = tp  # and keep it: the id of a type that is freed may be reused
        for inner in _types_in(tp, kind):
            yield from _secrets_in(inner, path, seen)
        for name, inner in _field_types(kind).items():
            yield from _secrets_in(inner, (*path, name), seen)


def _types_in(tp: Any, kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, TypeVar):
        return (kind.__bound__, *kind.__constraints__)
    if isinstance(kind, NewType):
        return (cast("Any", kind).__supertype__,)
    # TypeAliasType may be Python's, or that of typing_extensions.
    own = (kind.__value__,) if type(kind).__name__ == "TypeAliasType" else ()
    return () if kind is Literal else (*own, *get_args(tp))


def _field_types(kind: Any) -> Mapping[str, Any]:
    """Return the annotations of a model, a dataclass, a TypedDict or a NamedTuple."""
    if _is_model(kind):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields"):
        # pydantic may find names that this does not. Then the value itself is compared when it is sent.
        with suppress(Exception):
            return get_type_hints(kind, include_extras=True)
    return {}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _json_only(value: object, info: ValidationInfo) -> object:
    if info.mode == "python" and (problem := _json_problem(value, "", MAX_DEPTH)):
        raise PydanticCustomError(NOT_JSON, "{problem}", {"problem": problem})
    return value


def _json_problem(value: object, path: str, depth: int) -> str | None:
    """Return why a value is not a JSON value, or None. The depth is limited, so this ends also for a value that contains itself."""
    match value:
        case Enum():
            pass
        case float() if not math.isfinite(value):
            return f"{value}{path} is not a JSON value; annotate it as float to send it"
        case None | str() | int() | float():
            return None
        case list() | dict():
            return _container_problem(cast("list[object] | dict[object, object]", value), path, depth)
        case _:
            pass
    return f"a {type(value).__name__}{path} is not a JSON value; annotate it with its type to send it"


def _container_problem(value: list[object] | dict[object, object], path: str, depth: int) -> str | None:
    if depth == 0:
        return f"it is nested more than {MAX_DEPTH} levels deep, or contains itself"
    is_dict = isinstance(value, dict)
    for key, item in value.items() if is_dict else enumerate(value):
        if is_dict and not isinstance(key, str):
            return f"the key {key!r:.80}{path} is not a string; annotate the dict with the type of its keys to send it"
        if problem := _json_problem(item, f"{path or ' at '}[{key!r:.40}]", depth - 1):
            return problem
    return None


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


# -- comparison


def find_change(
    given: object, checked: object, arrived: object, is_same_json: Callable[[], bool]
) -> ValueChange | None:
    """Return the first difference between the value that was given and the one that arrives.

    `checked` is the value after validation. It shows where an enum member would be lost: for `str` it is the text of a `StrEnum` member,
    which then arrives, but for `Colour | str` it is the member. `is_same_json` returns whether what arrived is written as the same JSON.
    """
    try:
        comparison = _Comparison(is_same_json)
        change = comparison.find(given, arrived)
        if change is None and comparison.met_enums:
            change = _Comparison(is_same_json, keeps_enums=True).find(checked, arrived)
    except RecursionError:  # a long chain of attributes that refer to each other; payloads themselves have a limit
        return ValueChange(
            given, arrived, advice="it is nested too deeply to be compared: send it flatter", is_hidden=True
        )
    return change


class _Comparison:
    """Compare two values part by part. Optimized for equal values: the place of a difference is built on the way back from it."""

    def __init__(self, is_same_json: Callable[[], bool], *, keeps_enums: bool = False) -> None:
        self.met_enums = False
        self._is_same_json = is_same_json
        self._keeps_enums = keeps_enums
        self._begun: set[tuple[int, int]] = set()
        """Pairs of objects whose attributes are being compared: they may refer to each other."""

    def find(self, sent: object, arrived: object) -> ValueChange | None:
        if sent is arrived:
            return None
        if type(sent) is not type(arrived) and not self._may_arrive_as(sent, arrived):
            return ValueChange(sent, arrived, advice=_type_advice(sent, arrived))
        return _comparison_for(type(sent))(self, sent, arrived)

    def _may_arrive_as(self, sent: object, arrived: object) -> bool:
        left, right = type(sent), type(arrived)
        if isinstance(sent, Enum) and not isinstance(arrived, Enum):
            self.met_enums = True
            if self._keeps_enums:
                return False
        if _has_fields(left) or _has_fields(right):
            return _generic_class(left) is _generic_class(right)
        if left is bool or right is bool:
            return False
        if isinstance(sent, Mapping) and isinstance(arrived, Mapping):
            return True
        return right in left.__mro__ or (right is float and isinstance(sent, int))

    def compare_scalars(self, sent: Any, arrived: Any) -> ValueChange | None:
        if sent == arrived or (sent != sent and arrived != arrived):  # noqa: PLR0124 - NaN
            return None
        return ValueChange(sent, arrived)

    def compare_mappings(self, sent: Mapping[Any, Any], arrived: Mapping[Any, Any]) -> ValueChange | None:
        if isinstance(sent, defaultdict) and isinstance(arrived, defaultdict):
            change = self.find(sent.default_factory, arrived.default_factory)
            if change:
                return change.inside("default_factory")
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        known = {key: key for key in arrived}
        others = (key for key in arrived if key not in sent)  # NaN keys, which are never change
        for key, value in sent.items():
            other = known[key] if key in known else next(others, MISSING)
            if isinstance(key, str) != isinstance(other, str):  # 1 and "1"
                return ValueChange(sent, arrived)
            if change := self.find(key, other) or self.find(value, arrived[other]):
                return change.inside(key if type(key) in {int, str} else repr(key))
        return None

    def compare_sets(self, sent: AbstractSet[Any], arrived: AbstractSet[Any]) -> ValueChange | None:
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        known = {item: item for item in arrived}
        others = [item for item in arrived if item not in sent]
        for number, item in enumerate(sent):
            if item in known:
                if change := self.find(item, known[item]):
                    return change.inside(number)
                continue
            # NaN, or objects without an ==. A set has no order, so any item that is the same matches.
            same = next((place for place, other in enumerate(others) if not self.find(item, other)), None)
            if same is None:
                return ValueChange(sent, arrived)
            del others[same]
        return None

    def compare_sequences(self, sent: Sequence[Any], arrived: Sequence[Any]) -> ValueChange | None:
        if isinstance(sent, deque) and isinstance(arrived, deque):
            change = self.find(sent.maxlen, arrived.maxlen)
            if change:
                return change.inside("maxlen")
        if len(sent) != len(arrived):
            return ValueChange(sent, arrived)
        for number, (left, right) in enumerate(zip(sent, arrived, strict=True)):
            if change := self.find(left, right):
                names = getattr(type(sent), "_fields", None)  # of a named tuple
                return change.inside(names[number] if names else number)
        return None

    def compare_results(
        self, sent: TaskResult[Any, TaskError], arrived: TaskResult[Any, TaskError]
    ) -> ValueChange | None:
        if sent.is_ok() != arrived.is_ok():
            return ValueChange(sent, arrived)
        step = "ok" if sent.is_ok() else "err"
        change = self.find(getattr(sent, step), getattr(arrived, step))
        return change.inside(step) if change else None

    def compare_models(self, sent: BaseModel, arrived: BaseModel) -> ValueChange | None:
        left, right = sent.__dict__, arrived.__dict__
        for field in _model_fields(type(sent)):
            if change := self.find(left.get(field.name, MISSING), right.get(field.name, MISSING)):
                return change.inside(field.name, field.advice, is_hidden=field.is_hidden)
        if change := self.compare_attributes(_slot(sent, "__pydantic_extra__"), _slot(arrived, "__pydantic_extra__")):
            return change
        private = _slot(sent, "__pydantic_private__"), _slot(arrived, "__pydantic_private__")
        change = self.compare_attributes(*private) if any(private) and self._begin(sent, arrived) else None
        return change._replace(advice=_PRIVATE, is_hidden=True) if change else None

    def compare_dataclasses(self, sent: object, arrived: object) -> ValueChange | None:
        fields, names = _dataclass_fields(type(sent))
        for field in fields:
            if change := self.find(getattr(sent, field.name, MISSING), getattr(arrived, field.name, MISSING)):
                return change.inside(field.name, field.advice, is_hidden=field.is_hidden)
        if names.issuperset(getattr(sent, "__dict__", ())) and names.issuperset(getattr(arrived, "__dict__", ())):
            return None
        if not self._begin(sent, arrived):
            return None
        others = (
            {name: value for name, value in _attributes(each).items() if name not in names} for each in (sent, arrived)
        )
        change = self.compare_attributes(*others)
        return change._replace(advice=_NOT_A_FIELD) if change else None

    def compare_attributes(self, sent: Mapping[str, object], arrived: Mapping[str, object]) -> ValueChange | None:
        for name in sent if sent.keys() == arrived.keys() else {**sent, **arrived}:
            if change := self.find(sent.get(name, MISSING), arrived.get(name, MISSING)):
                return change.inside(name)
        return None

    def compare_opaque(self, sent: object, arrived: object) -> ValueChange | None:
        """Compare two objects without an `==` of their own."""
        if not self._begin(sent, arrived):
            return None
        attributes = _attributes(sent)
        if not attributes:
            return None if self._is_same_json() else ValueChange(sent, arrived)
        return self.compare_attributes(attributes, _attributes(arrived))

    def _begin(self, sent: object, arrived: object) -> bool:
        """Remember a pair, and return whether this is the first comparison of their attributes."""
        pair = (id(sent), id(arrived))
        is_first = pair not in self._begun
        self._begun.add(pair)
        return is_first

    def compare_others(self, sent: Any, arrived: Any) -> ValueChange | None:
        try:
            equal = sent == arrived
        except Exception:  # noqa: BLE001 - an == of the user's own
            equal = None
        if not isinstance(equal, bool):  # such as an == that compares element by element
            equal = self._is_same_json()
        match sent, arrived:
            case (float(), float()) | (Decimal(), Decimal()):
                equal = equal or (math.isnan(sent) and math.isnan(arrived))
            case (datetime(), datetime()) if sent.tzinfo and arrived.tzinfo:
                # In an hour that occurs twice, an aware datetime does not equal any datetime of another zone.
                equal = equal or sent.astimezone(UTC) == arrived.astimezone(UTC)
            case (time(), time()):
                equal = equal and (sent.tzinfo is None) == (arrived.tzinfo is None)
            case _:
                pass
        return None if equal else ValueChange(sent, arrived)


_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes, bytearray, date, timedelta, UUID})


Compare: TypeAlias = Callable[[_Comparison, Any, Any], ValueChange | None]

_COMPARISONS: Final[tuple[tuple[Any, Compare], ...]] = (
    (BaseModel, _Comparison.compare_models),
    (TaskResult, _Comparison.compare_results),
    (str | bytes | memoryview | Enum, _Comparison.compare_others),
    (Mapping, _Comparison.compare_mappings),
    (AbstractSet, _Comparison.compare_sets),
    (Sequence, _Comparison.compare_sequences),
)


@lru_cache(maxsize=1_000)  # called for each part of a value, and issubclass is slow for abstract classes
def _comparison_for(kind: Any) -> Compare:
    if kind in _SCALARS:
        return _Comparison.compare_scalars
    if dataclasses.is_dataclass(kind):
        return _Comparison.compare_dataclasses
    default = _Comparison.compare_opaque if kind.__eq__ is object.__eq__ else _Comparison.compare_others
    return next((compare for kinds, compare in _COMPARISONS if issubclass(kind, kinds)), default)


def _type_advice(sent: object, arrived: object) -> str | None:
    if type(arrived).__name__ in {"ValidatorIterator", "SerializationIterator"}:
        return _ITERATOR
    if _has_fields(type(sent)) and type(arrived) in type(sent).__mro__:
        return _SUBCLASS
    is_collection = isinstance(sent, Sequence | AbstractSet) and not isinstance(sent, str | bytes)
    return _SEQUENCE if is_collection and isinstance(arrived, Sequence | AbstractSet) else None


class _Field(NamedTuple):
    name: str
    advice: str | None
    is_hidden: bool


@lru_cache(maxsize=1_000)
def _model_fields(kind: type[BaseModel]) -> tuple[_Field, ...]:
    return tuple(
        _Field(name, _EXCLUDED if field.exclude else None, is_hidden=bool(field.exclude) or not field.repr)
        for name, field in kind.model_fields.items()
    )


@lru_cache(maxsize=1_000)
def _dataclass_fields(kind: Any) -> tuple[tuple[_Field, ...], frozenset[str]]:
    """Return the fields, and their names."""
    fields = tuple(
        _Field(field.name, None if field.init else _NOT_INIT, is_hidden=not field.repr)
        for field in dataclasses.fields(kind)
    )
    return fields, frozenset(field.name for field in fields)


@lru_cache(maxsize=1_000)
def _has_fields(kind: Any) -> bool:
    return issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)


def _slot(value: BaseModel, name: str) -> Mapping[str, object]:
    """Return the extra values or the private attributes of a model. An instance that was not made by pydantic may not have them."""
    return getattr(value, name, None) or {}


def _generic_class(kind: type) -> type:
    """Return `Box` for `Box[int]`: pydantic creates a class for each."""
    return getattr(kind, "__pydantic_generic_metadata__", {}).get("origin") or kind


def _attributes(value: object) -> dict[str, object]:
    """Return the attributes of an object, without those that a `cached_property` has stored."""
    kind = type(value)
    found: dict[str, object] = dict(getattr(value, "__dict__", {}))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in {"__dict__", "__weakref__"} and hasattr(value, name):
                found[name] = getattr(value, name)
    return {name: item for name, item in found.items() if not isinstance(getattr(kind, name, None), cached_property)}


# -- annotations for which == is enough

_EXACT: Final = frozenset(
    {"none", "bool", "int", "float", "str", "bytes", "date", "datetime", "timedelta", "uuid", "decimal", "enum"}
)
_INNER: Final = {
    "list": ("items_schema",),
    "tuple": ("items_schema",),
    "set": ("items_schema",),
    "frozenset": ("items_schema",),
    "dict": ("keys_schema", "values_schema"),
    "nullable": ("schema",),
    "default": ("schema",),
    "definitions": ("schema", "definitions"),
    "typed-dict": ("fields",),
    "typed-dict-field": ("schema",),
    "model": ("schema",),
    "model-fields": ("fields",),
    "model-field": ("schema",),
}


def _is_equality_exact(schema: Any) -> bool:
    """Return whether `==` of two values of this schema is True only if nothing has changed.

    This holds for plain types, their containers, and models of them that use pydantic's own `==`.
    """
    match schema["type"]:
        case "definition-ref":  # checked with the definitions
            return True
        case "literal":
            return all(type(each) is str for each in schema["expected"])
        case "function-after":
            return schema["function"]["function"] is _json_only
        case kind if kind in _EXACT:
            return True
        case kind:
            return _has_plain_equality(schema) and all(
                _is_equality_exact(inner) for name in _INNER[kind] for inner in _inner_schemas(schema[name])
            )


def _has_plain_equality(schema: Any) -> bool:
    inner = _INNER.get(schema["type"])
    if inner is None or not all(name in schema for name in inner):  # such as a list of anything
        return False
    if schema.get("extra_behavior") == "allow" or schema.get("post_init") or schema.get("custom_init"):
        return False
    kind = schema.get("cls")
    return not (schema["type"] == "model" and (kind.__eq__ is not BaseModel.__eq__ or kind.__private_attributes__))


def _inner_schemas(found: Any) -> Iterable[Any]:
    """Return a list of one schema, of several, or of those of fields by name."""
    if not isinstance(found, Mapping):
        return found
    schemas = cast("Mapping[str, Any]", found)
    # A field may have the name "type"; then its value is a schema, and not the name of one.
    return schemas.values() if isinstance(schemas.get("type", {}), Mapping) else [schemas]
