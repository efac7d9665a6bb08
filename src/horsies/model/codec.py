"""Encode arguments, results and errors as JSON, by their annotations. Nothing is pickled, and no payload names a class to import.

**Equal or refused.** Writing is strict (`"1"` is not an int), and reading is lax, as JSON requires. What was written is read back once before
it is sent: a value that the other side could not read (a tuple as a dict key), or that would arrive as another one (NaN in a model that
writes null for it), is refused where it was made (`roundtrip.py`). Both directions use field names: aliases are for JSON of other systems.

**Open annotations.** `Any`, `object` and a missing annotation mean "a JSON value and nothing else". pydantic would accept anything there and
write it as well as it can, and a datetime would arrive as a string: here it is refused, with the advice to annotate it.
Inside the fields of a model or a dataclass pydantic's own rules apply.

**When codecs are built.** A codec is built once per task, at decoration: an annotation that cannot be encoded is refused there. A child builds it at
first use: it takes half a millisecond, a child runs a hundred tasks and may know hundreds, and its worker has refused already. The nodes of
a workflow pass some arguments and receive others from each other: adapters for such parts are built for the first such node, and kept.
"""

import dataclasses
import hashlib
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from functools import cache, cached_property
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
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
from pydantic_core import (
    CoreConfig,
    CoreSchema,
    PydanticCustomError,
    PydanticSerializationError,
    SchemaSerializer,
    SchemaValidator,
    core_schema,
    from_json,
    to_json,
)
from typing_extensions import TypeAliasType, TypedDict, is_typeddict

from horsies.model.errors import PayloadError, ResultTypeError, TaskDefinitionError
from horsies.model.payload_errors import (
    DEFAULT_MAX_BYTES,
    NOT_JSON,
    PASSED_ARGUMENT,
    RESULT,
    STORED_ARGUMENT,
    UNWRITABLE,
    PayloadSizeCheck,
    ReportStyle,
    one_line,
    report_change,
    report_problems,
    short_repr,
    with_advice,
)
from horsies.model.result import TaskError
from horsies.model.roundtrip import find_change
from horsies.model.signature import callers_signature, display_type, function_name

T = TypeVar("T")

MAX_DEPTH: Final = 180  # the JSON parser stops at 200, and the payload has levels of its own

_CONFIG: Final = ConfigDict(
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="strings",
    revalidate_instances="always",  # nothing else ever checks the fields of a plain dataclass
)
_PLAIN_CONFIG: Final = CoreConfig(ser_json_inf_nan="strings")


_builds_at_first_use: ContextVar[bool] = ContextVar("builds_at_first_use", default=False)


@contextmanager
def build_codecs_at_first_use() -> Generator[None]:
    """Do not build the codecs of tasks that are defined in this block before they are used."""
    token = _builds_at_first_use.set(True)
    try:
        yield
    finally:
        _builds_at_first_use.reset(token)


class ArgumentsCodec:
    """Encode the arguments of a call of one function as a JSON object by parameter name, and decode them."""

    def __init__(self, fn: Callable[..., object], size_check: PayloadSizeCheck | None = None) -> None:
        self.name = function_name(fn)
        self.size_check = size_check or PayloadSizeCheck(f"the arguments of {self.name}()")
        self.signature, injected = callers_signature(fn)
        """As callers see it."""
        self.wants = frozenset(injected)
        self.needs = frozenset(name for name, each in injected.items() if each.default is each.empty)
        """Those of `wants` without a default: outside a workflow the task cannot run."""
        parameters = self.signature.parameters.values()
        self.var_positional = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), None)
        self.var_keyword = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), None)
        # A parameter before *args cannot be passed by name once there are more positional arguments.
        self._positional = [
            (each.name, each.default)
            for each in parameters
            if each.kind is each.POSITIONAL_ONLY or (self.var_positional and each.kind is each.POSITIONAL_OR_KEYWORD)
        ]
        self._has_only_names = not (self._positional or self.var_positional or self.var_keyword)
        self._positional_names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        self._known = frozenset(self.signature.parameters)
        without_default = {each.name for each in parameters if each.default is each.empty}
        self._required = frozenset(without_default - {self.var_positional, self.var_keyword})
        self._partial_adapters: dict[object, Adapter] = {}
        if not _builds_at_first_use.get():
            _ = self.adapter

    @cached_property
    def adapter(self) -> "Adapter":
        return _arguments_adapter(self.name, self.signature.parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if self.needs:
            names = " and ".join(sorted(self.needs))
            raise PayloadError(
                f"{self.name}() takes {names}, which only a workflow can provide; run it as a node of one, "
                f"or give the parameter a default, as in workflow_ctx: WorkflowContext | None = None"
            )
        # `signature.bind` takes longer than the rest of the encoding, so it is used only if it must be.
        given = self.bind_by_name(args, kwargs)
        if given is None:
            try:
                given = self.signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise PayloadError(
                    f"{self.name}() cannot be called like this: {error}; call it as {self._display_signature()}"
                ) from None
        return self.adapter.write(
            given, f"{self.name}() cannot be sent", PASSED_ARGUMENT, PayloadError, self.size_check
        )

    def bind_by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments by parameter name, in the order of the signature; None if this needs `inspect`, or does not fit."""
        if not self._has_only_names:
            return None
        given = {**dict(zip(self._positional_names, args, strict=False)), **kwargs}
        if len(given) == len(args) + len(kwargs) and self._required <= given.keys() <= self._known:
            return {name: given[name] for name in self.signature.parameters if name in given} if kwargs else given
        return None

    def encode_partial(self, given: Mapping[str, Any]) -> str:
        """Encode some of the arguments by name, for a call whose other arguments come later."""
        ordered = {name: given[name] for name in self.signature.parameters if name in given}
        parameters = {name: self.signature.parameters[name] for name in ordered}
        adapter = self._partial_adapter(frozenset(given), lambda: _arguments_adapter(self.name, parameters))
        return adapter.write(ordered, f"{self.name}()", PASSED_ARGUMENT, PayloadError, self.size_check)

    def encode_element(self, tp: Any, value: object, place: str, size_check: PayloadSizeCheck | None = None) -> str:
        """Encode a part of an argument, such as one item of a list whose other items come later."""
        adapter = self._partial_adapter(("element", tp), lambda: value_adapter(tp, f"{self.name}(): '{place}'"))
        style = ReportStyle(noun=f"argument '{place}' at", show=short_repr)
        return adapter.write(value, f"argument '{place}'", style, PayloadError, size_check or self.size_check)

    def _partial_adapter(self, key: object, build: "Callable[[], Adapter]") -> "Adapter":
        try:
            adapter = self._partial_adapters.get(key)
        except TypeError:  # an annotation need not be hashable
            return build()
        if adapter is None:
            adapter = self._partial_adapters[key] = build()
        return adapter

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = self.adapter.read(text, f"{self.name}() cannot be called with this payload", STORED_ARGUMENT)
        args = [values.pop(name, default) for name, default in self._positional]
        if self.var_positional:
            args += values.pop(self.var_positional, ())
        if self.var_keyword:
            values |= values.pop(self.var_keyword, {})
        return tuple(args), values

    def has_these_parameters(self, text: str | bytes) -> bool:
        """Return whether a payload has the parameters of this function, whatever their values. If not, it was made for another."""
        try:
            given: Any = json.loads(text)
        except (ValueError, RecursionError):
            return True
        return not isinstance(given, dict) or self._required <= cast("dict[str, Any]", given).keys() <= self._known

    @cached_property
    def fingerprint(self) -> int:
        """A number that differs between functions if payloads for one may not fit the other. It is the same in every process."""
        parameters = self.signature.parameters.values()
        parts = [f"{each.name} {each.kind.name} {each.default is each.empty}" for each in parameters]
        if self.adapter.type_adapter is None:
            parts += [repr(each.annotation) for each in parameters]
        else:  # the repr of a type that is not plain may contain an address and does not show its fields: use its schema
            with suppress(Exception):  # pydantic has no schema for some types, and runs the hooks of the user's own
                parts.append(json.dumps(self.adapter.type_adapter.json_schema(by_alias=False), sort_keys=True))
        digest = hashlib.blake2b("\n".join(parts).encode(errors="backslashreplace"), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _display_signature(self) -> str:
        try:
            text = str(self.signature.replace(return_annotation=self.signature.empty))
        except Exception:  # noqa: BLE001 - a default of the user's own whose repr fails
            text = f"({', '.join(self.signature.parameters)})"
        return one_line(f"{self.name}{text}")


class ResultCodec(Generic[T]):
    """Encode and decode the value of a task that succeeded."""

    def __init__(self, tp: Any, size_check: PayloadSizeCheck | None = None) -> None:
        self.size_check = size_check or PayloadSizeCheck("the result")
        self._type = tp
        if not _builds_at_first_use.get():
            _ = self.adapter

    @cached_property
    def adapter(self) -> "Adapter":
        return value_adapter(self._type, "the result")

    def encode(self, value: object) -> str:
        """Encode a value. Raises ResultTypeError for a value of another type, PayloadError for one that cannot be written."""
        return self.adapter.write(value, "the result cannot be stored", RESULT, ResultTypeError, self.size_check)

    def decode(self, text: str | bytes) -> T:
        return self.adapter.read(text, "the stored result does not fit its annotation", RESULT)


class Adapter(NamedTuple):
    """Write and read the values of one annotation."""

    validator: SchemaValidator
    serializer: SchemaSerializer
    trusts_equality: bool
    """`==` is enough to detect a change; otherwise values are compared part by part."""
    type_adapter: TypeAdapter[Any] | None = None
    """None for plain annotations."""

    def write(
        self, value: object, what: str, style: ReportStyle, mismatch: type[PayloadError], size_check: PayloadSizeCheck
    ) -> str:
        """Encode a value. Raises `mismatch` for a value of another type, PayloadError for one that cannot be sent."""
        try:
            checked = self.validator.validate_python(value, strict=True, by_alias=False, by_name=True)
            payload = self.serializer.to_json(checked, warnings="error", round_trip=True, by_alias=False)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            kind = PayloadError if all(problem["type"] in UNWRITABLE for problem in problems) else mismatch
            raise kind(report_problems(what, style, problems)) from None
        except PydanticSerializationError as error:
            raise PayloadError(f"{what}: {with_advice(error)}") from None
        except Exception as error:  # a validator or a serializer of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error
        if len(payload) > size_check.small_bytes:
            size_check.check(payload, what)
        arrived = self.read(payload, f"{what}: it could be written as JSON, but not read back", style)
        try:
            if self.trusts_equality and (value == arrived) is True:
                return payload.decode()
        except Exception:  # noqa: BLE001, S110 - an == of the user's own; compare part by part
            pass
        if change := find_change(value, checked, arrived, cache(lambda: self._is_written_as(arrived, payload))):
            raise PayloadError(
                f"{what}: it could be written as JSON, but would arrive changed:\n  - {report_change(style, change)}"
            )
        return payload.decode()

    def read(self, text: str | bytes, what: str, style: ReportStyle) -> Any:
        try:
            return self.validator.validate_json(text, by_alias=False, by_name=True)
        except ValidationError as error:
            raise PayloadError(report_problems(what, style, error.errors(include_url=False))) from None
        except Exception as error:  # a validator of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def _is_written_as(self, value: object, payload: bytes) -> bool:
        try:
            return self.serializer.to_json(value, warnings="error", round_trip=True, by_alias=False) == payload
        except Exception:  # noqa: BLE001 - pydantic's, or that of a serializer of the user's own
            return False


# -- adapters by annotation


def _arguments_adapter(function_name: str, parameters: Mapping[str, inspect.Parameter]) -> Adapter:
    """Build one adapter for all arguments together: a dict by parameter name."""
    fields: dict[str, core_schema.TypedDictField] = {}
    for name, each in parameters.items():
        is_variadic = each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        schema = None if is_variadic else _plain_schema(Any if each.annotation is each.empty else each.annotation)
        if schema is None:
            break
        fields[name] = core_schema.typed_dict_field(schema, required=each.default is each.empty)
    else:
        return _plain_adapter(core_schema.typed_dict_schema(fields, extra_behavior="forbid"))
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
    plain = _plain_schema(tp)
    if plain is not None:
        return _plain_adapter(plain)
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
    tp = _without_alias(tp)
    origin, arguments = get_origin(tp), get_args(tp)
    if reason := next((reason for never, reason in _NEVER_JSON if tp is never or origin is never), None):
        raise TypeError(reason)
    for open_type, closed in _OPEN_TYPES:
        if tp is open_type:
            return closed
    if isinstance(tp, TypeVar):
        return close_annotation(Union[tp.__constraints__] if tp.__constraints__ else tp.__bound__ or Any)  # noqa: UP007 - a tuple of types
    if origin is Annotated:
        return Annotated[(close_annotation(arguments[0]), *arguments[1:])]
    is_open = origin is not Literal
    closed = tuple(close_annotation(each) if is_open and each is not Ellipsis else each for each in arguments)
    if not arguments or (closed == arguments and origin is not Iterable):
        return tp
    if origin in {Union, types.UnionType}:
        return Union[closed]  # noqa: UP007 - a tuple of types
    kind: Any = list if origin is Iterable else origin
    return kind[closed]


def _without_alias(tp: Any) -> Any:
    """Return `list` for a bare `typing.List`, and so on."""
    return get_origin(tp) if isinstance(tp, _BARE_ALIAS) else tp


def _dict_adapter(parameters: Mapping[str, inspect.Parameter]) -> Adapter:
    make_typed_dict = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)
    arguments = make_typed_dict("Arguments", {name: _field_type(parameter) for name, parameter in parameters.items()})
    return _adapter(Annotated[arguments, _NoOtherKeys()])


def _adapter(tp: Any) -> Adapter:
    # pydantic refuses a configuration for a dataclass, a model or a TypedDict at the root, and accepts it for an alias of one.
    alias: Any = TypeAliasType("Payload", tp)  # pyright: ignore[reportGeneralTypeIssues]
    adapter: TypeAdapter[Any] = TypeAdapter(alias, config=_CONFIG)
    validator = cast("SchemaValidator", adapter.validator)
    return Adapter(validator, adapter.serializer, _is_equality_exact(adapter.core_schema), adapter)


def _field_type(parameter: inspect.Parameter) -> Any:
    annotation = close_annotation(Any if parameter.annotation is parameter.empty else parameter.annotation)
    if parameter.kind is parameter.VAR_POSITIONAL:
        return NotRequired[tuple[annotation, ...]]
    if parameter.kind is parameter.VAR_KEYWORD:
        return NotRequired[dict[str, annotation]]
    return annotation if parameter.default is parameter.empty else NotRequired[annotation]


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
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields"):
        # pydantic may find names that this does not. Then the value itself is compared when it is sent.
        with suppress(Exception):
            return get_type_hints(kind, include_extras=True)
    return {}


_CONTAINERS: Final[tuple[type[Any], ...]] = (list, dict)
_JSON_TYPES: Final[tuple[type[Any], ...]] = (str, int, float, *_CONTAINERS)


def _json_only(value: object, info: ValidationInfo) -> object:
    if info.mode == "python" and (problem := _json_problem(value, "", MAX_DEPTH)):
        raise PydanticCustomError(NOT_JSON, "{problem}", {"problem": problem})
    return value


def _json_problem(value: object, path: str, depth: int) -> str | None:
    """Return why a value is not a JSON value, or None. The depth is limited, so this ends also for a value that contains itself."""
    type_name = type(value).__name__
    is_json = value is None or (isinstance(value, _JSON_TYPES) and not isinstance(value, Enum))
    if not is_json or (isinstance(value, float) and not math.isfinite(value)):
        what, how = (str(cast("object", value)), "as float") if is_json else (f"a {type_name}", "with its type")
        return f"{what}{path} is not a JSON value; annotate it {how} to send it"
    if not isinstance(value, _CONTAINERS):
        return None
    if depth == 0:
        return f"it is nested more than {MAX_DEPTH} levels deep, or contains itself"
    is_dict, container = isinstance(value, dict), cast("Any", value)
    for key, item in container.items() if is_dict else enumerate(container):
        if is_dict and not isinstance(key, str):
            return f"the key {key!r:.80}{path} is not a string; annotate the dict with the type of its keys to send it"
        if problem := _json_problem(item, f"{path or ' at '}[{key!r:.40}]", depth - 1):
            return problem
    return None


AnyJson = Annotated[Any, AfterValidator(_json_only)]
_ANY_JSON_SCHEMA: Final = core_schema.with_info_after_validator_function(_json_only, core_schema.any_schema())

# Compared by identity: an annotation need not be hashable.
_OPEN_TYPES: Final[tuple[tuple[Any, Any], ...]] = (
    (Any, AnyJson),
    (object, AnyJson),
    (list, list[AnyJson]),
    (Iterable, list[AnyJson]),
    (Sequence, Sequence[AnyJson]),
    (dict, dict[str, AnyJson]),
    (Mapping, Mapping[str, AnyJson]),
    (tuple, tuple[AnyJson, ...]),
    (set, set[AnyJson]),
    (frozenset, frozenset[AnyJson]),
)
_BARE_ALIAS: Final[type] = type(typing.List)  # noqa: UP006 - without arguments; `tuple[()]` has none either, but is another class
_NEVER_JSON: Final[tuple[tuple[Any, str], ...]] = (
    (get_origin(Callable[[], None]), "a function cannot be sent"),
    (type, "a class cannot be sent"),
)


# -- annotations of JSON's own types

# Compared by identity: an annotation need not be hashable.
_PLAIN_SCHEMAS: Final[tuple[tuple[Any, CoreSchema], ...]] = (
    (None, core_schema.none_schema()),
    (type(None), core_schema.none_schema()),
    (bool, core_schema.bool_schema()),
    (int, core_schema.int_schema()),
    (float, core_schema.float_schema()),
    (str, core_schema.str_schema()),
    (Any, _ANY_JSON_SCHEMA),
    (object, _ANY_JSON_SCHEMA),
    (list, core_schema.list_schema(_ANY_JSON_SCHEMA)),
    (dict, core_schema.dict_schema(core_schema.str_schema(), _ANY_JSON_SCHEMA)),
)


def _plain_schema(tp: Any) -> CoreSchema | None:
    """Return the schema that pydantic builds for an annotation of JSON's own types; None for any other.

    Most tasks need no other. Every child builds the adapters of the tasks that it runs, and pydantic takes half a millisecond for one.
    """
    tp = _without_alias(tp)
    for known, schema in _PLAIN_SCHEMAS:
        if tp is known:
            return schema
    origin, inner = get_origin(tp), get_args(tp)
    if origin is list and (item := _plain_schema(inner[0])):
        return core_schema.list_schema(item)
    if origin is dict and inner[0] is str and (item := _plain_schema(inner[1])):
        return core_schema.dict_schema(core_schema.str_schema(), item)
    if origin in {Union, types.UnionType} and len(inner) == 2 and type(None) in inner:  # noqa: PLR2004 - `T | None`
        item = _plain_schema(inner[0] if inner[1] is type(None) else inner[1])
        return core_schema.nullable_schema(item) if item else None
    return None


def _plain_adapter(schema: CoreSchema) -> Adapter:
    validator, serializer = SchemaValidator(schema, _PLAIN_CONFIG), SchemaSerializer(schema, _PLAIN_CONFIG)
    return Adapter(validator, serializer, _is_equality_exact(schema))


# -- annotations for which == is enough

_EXACT: Final = frozenset(
    {"none", "bool", "int", "float", "str", "bytes", "date", "datetime", "timedelta", "uuid", "decimal", "enum"}
    | {"definition-ref"}  # the definitions are checked where they are
)
_INNER: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("list", "tuple", "set", "frozenset"), ("items_schema",)),
    **dict.fromkeys(("nullable", "default", "typed-dict-field", "model", "model-field"), ("schema",)),
    **dict.fromkeys(("typed-dict", "model-fields"), ("fields",)),
    "dict": ("keys_schema", "values_schema"),
    "definitions": ("schema", "definitions"),
}


def _is_equality_exact(schema: Any) -> bool:
    """Return whether `==` of two values of this schema is True only if nothing has changed.

    This holds for plain types, their containers, and models of them that use pydantic's own `==`.
    """
    kind = schema["type"]
    if kind in _EXACT:
        return True
    if kind == "literal":
        return all(type(each) is str for each in schema["expected"])
    if kind == "function-after":
        return schema["function"]["function"] is _json_only
    names = _INNER.get(kind)
    if names is None or not all(name in schema for name in names):  # such as a list of anything
        return False
    is_own = kind == "model" and (schema["cls"].__eq__ is not BaseModel.__eq__ or schema["cls"].__private_attributes__)
    if is_own or schema.get("extra_behavior") == "allow" or schema.get("post_init") or schema.get("custom_init"):
        return False
    inner: list[Any] = [schema[name].values() if name == "fields" else schema[name] for name in names]
    schemas: list[Any] = [
        one for each in inner for one in (cast("list[Any]", [each]) if isinstance(each, dict) else each)
    ]
    return all(_is_equality_exact(one) for one in schemas)


# -- errors


def encode_error(error: TaskError, max_bytes: int = DEFAULT_MAX_BYTES, task_id: str | None = None) -> str:
    """Encode the error of a task. This never fails: data that cannot be written is replaced by its repr, and long texts are cut.

    `task_id` is for errors that the library creates for a task: it is added to their data.
    """
    message, data = str(error.message), error.data
    task = {} if task_id is None else {"task_id": task_id}
    if task and (data is None or isinstance(data, dict)):
        data = {**task, **cast("dict[str, Any]", data or {})}
    data_json = _data_json(data)
    text = _error_json(error.error_code, message, data_json)
    if len(text.encode()) <= max_bytes:
        return text
    longest = max_bytes // 16  # characters: one takes up to six bytes in JSON, and up to seven in JSON inside JSON
    cut_data = json.dumps({**task, "truncated": _storable(_cut(data_json, longest))}, ensure_ascii=False)
    return _error_json(error.error_code, _cut(message, longest), cut_data)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON that other software may have written. Raises ValueError for all that cannot be read, also if it is nested too deeply."""
    return from_json(text)


def decode_error(text: str | bytes) -> TaskError:
    try:
        stored = parse_json(text)
        return TaskError(error_code=stored["error_code"], message=stored.get("message", ""), data=stored.get("data"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PayloadError(f"the stored error cannot be read: {one_line(repr(error))}") from None


def _error_json(code: str, message: str, data: str) -> str:
    return f'{{"error_code":{_quote(code)},"message":{_quote(message)},"data":{data}}}'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def _data_json(data: object) -> str:
    with suppress(Exception):  # the data is the user's and can do anything
        text = to_json(data, bytes_mode="base64", inf_nan_mode="strings", fallback=_full_repr).decode()
        from_json(text)  # data that is nested too deeply can be written, but not read
        return text
    with suppress(Exception):  # pydantic cannot write half of a surrogate pair
        text = _storable(json.dumps(data, ensure_ascii=False, allow_nan=False, default=_full_repr))
        from_json(text)
        return text
    return _quote(_full_repr(data))


def _full_repr(value: object) -> str:
    try:
        return _storable(repr(value))
    except Exception:  # noqa: BLE001 - a repr of the user's own
        return f"<{type(value).__name__} that has no repr>"


def _quote(text: str) -> str:
    return json.dumps(_storable(text), ensure_ascii=False)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair has no UTF-8 form
