"""Encode arguments, results and errors as JSON, by their annotations. Nothing is pickled, and no payload names a class to import.

**Equal or refused.** Writing is strict (`"1"` is not an int), and reading is lax, as JSON requires. What was written is read back once before
it is sent: a value that the other side could not read (a tuple as a dict key), or that would arrive as another one (NaN in a model that
writes null for it), is refused where it was made. Both directions use field names: aliases are for JSON of other systems.

**Plain values.** Loading pydantic takes more CPU than the rest of a child's start, and most tasks take numbers and strings. Values that JSON has,
and lists and dicts of these, are therefore read and written here, but only where pydantic would do exactly the same: the same value from a
text, the same text from a value. For everything else, wrong or only unusual, this code gives no answer; then pydantic decides and
writes the error message (`pydantic_codec.py`).

**When codecs are built.** A codec is built once per task, at decoration. Its pydantic adapter is built at once if the annotation is not plain, and
otherwise for the first value that is not. The nodes of a workflow pass some arguments and receive others from each other: adapters for such
parts are built for the first such node, and kept.
"""

import hashlib
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from horsies.model.errors import PayloadError, ResultTypeError
from horsies.model.payload_errors import (
    DEFAULT_MAX_BYTES,
    PASSED_ARGUMENT,
    RESULT,
    STORED_ARGUMENT,
    PayloadSizeCheck,
    ReportStyle,
    one_line,
    short_repr,
)
from horsies.model.result import TaskError
from horsies.model.signature import Parameter, Parameters, callers_signature, function_name, parameters_of

if TYPE_CHECKING:
    import inspect

    from horsies.model.pydantic_codec import Adapter

__all__ = ["ArgumentsCodec", "ResultCodec", "ResultTypeError", "decode_error", "encode_error"]

PlainTest: TypeAlias = Callable[[object], bool]
"""Returns whether a value is exactly of a type, not of a subclass, and certain to be written and read as itself."""

T = TypeVar("T")

MAX_DEPTH: Final = 32
MAX_ITEMS: Final = 300  # in a list or dict, beyond which pydantic is faster
MAX_TEXT: Final = 4_000  # characters to read, for the same reason

_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


class _Codec:
    """`plain_test` selects the values that can be written and read without pydantic; None: no values."""

    def __init__(self, plain_test: PlainTest | None, size_check: PayloadSizeCheck) -> None:
        self.plain_test = plain_test
        self.size_check = size_check
        if plain_test is None:
            _ = self.adapter  # an annotation that cannot be encoded is refused here

    @cached_property
    def adapter(self) -> "Adapter":
        raise NotImplementedError

    def _write(self, value: object, what: str, style: ReportStyle, mismatch: type[PayloadError]) -> str:
        payload = _write_plain(value, self.plain_test) if self.plain_test else None
        if payload is None:
            return self.adapter.write(value, what, style, mismatch, self.size_check)
        self.size_check.check(payload, what)
        return payload.decode()

    def _read(self, text: str | bytes, what: str, style: ReportStyle) -> Any:
        value = _read_plain(text, self.plain_test) if self.plain_test else _NOT_PLAIN
        return self.adapter.read(text, what, style) if value is _NOT_PLAIN else value


class ArgumentsCodec(_Codec):
    """Encode the arguments of a call of one function as a JSON object by parameter name, and decode them."""

    def __init__(self, fn: Callable[..., object], parameters: Parameters, size_check: PayloadSizeCheck) -> None:
        simple = parameters.simple
        self.name = function_name(fn)
        self._fn = fn
        self._is_simple = simple is not None
        self._names = tuple(each.name for each in simple or ())
        self._positional_names = tuple(each.name for each in simple or () if each.is_positional)
        self._known = frozenset(self._names)
        self._required = frozenset(each.name for each in simple or () if each.is_required)
        self._positional = parameters.positional
        self.var_positional = parameters.var_positional
        self.var_keyword = parameters.var_keyword
        self.wants = parameters.wants
        self.needs = parameters.needs
        self._partial_adapters: dict[object, Adapter] = {}
        super().__init__(None if simple is None else _arguments_test(simple), size_check)

    @classmethod
    def for_function(cls, fn: Callable[..., object], size_check: PayloadSizeCheck | None = None) -> "ArgumentsCodec":
        size_check = size_check or PayloadSizeCheck(f"the arguments of {function_name(fn)}()")
        return cls(fn, parameters_of(fn), size_check)

    @cached_property
    def signature(self) -> "inspect.Signature":
        """The signature as callers see it."""
        return callers_signature(self._fn)

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
        return self._write(given, f"{self.name}() cannot be sent", PASSED_ARGUMENT, PayloadError)

    def bind_by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments by parameter name, in the order of the signature; None if this needs `inspect`, or does not fit."""
        if not self._is_simple:
            return None
        given = {**dict(zip(self._positional_names, args, strict=False)), **kwargs}
        if len(given) == len(args) + len(kwargs) and self._required <= given.keys() <= self._known:
            return {name: given[name] for name in self._names if name in given}
        return None

    def encode_partial(self, given: Mapping[str, Any]) -> str:
        """Encode some of the arguments by name, for a call whose other arguments come later."""
        ordered = {name: given[name] for name in self.signature.parameters if name in given}
        if self.plain_test and (payload := _write_plain(ordered, self.plain_test)):
            self.size_check.check(payload, f"{self.name}()")
            return payload.decode()
        parameters = {name: self.signature.parameters[name] for name in ordered}
        adapter = self._partial_adapter(frozenset(given), lambda: _arguments_adapter(self.name, parameters))
        return adapter.write(given, f"{self.name}()", PASSED_ARGUMENT, PayloadError, self.size_check)

    def encode_element(self, tp: Any, value: object, place: str, size_check: PayloadSizeCheck | None = None) -> str:
        """Encode a part of an argument, such as one item of a list whose other items come later."""
        adapter = self._partial_adapter(("element", tp), lambda: _value_adapter(tp, f"{self.name}(): '{place}'"))
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
        values = self._read(text, f"{self.name}() cannot be called with this payload", STORED_ARGUMENT)
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
        if not isinstance(given, dict):
            return True
        parameters = self.signature.parameters.values()
        variadic = {self.var_positional, self.var_keyword}
        required = {each.name for each in parameters if each.default is each.empty and each.name not in variadic}
        return required <= cast("dict[str, Any]", given).keys() <= {each.name for each in parameters}

    @cached_property
    def fingerprint(self) -> int:
        """A number that differs between functions if payloads for one may not fit the other. It is the same in every process."""
        parameters = self.signature.parameters.values()
        parts = [f"{each.name} {each.kind.name} {each.default is each.empty}" for each in parameters]
        # The repr of a type that is not plain may contain an address and does not show its fields: use its schema.
        parts += self.adapter.schemas() if self.plain_test is None else [repr(each.annotation) for each in parameters]
        text = "\n".join(parts)
        digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _display_signature(self) -> str:
        try:
            text = str(self.signature.replace(return_annotation=self.signature.empty))
        except Exception:  # noqa: BLE001 - a default of the user's own whose repr fails
            text = f"({', '.join(self.signature.parameters)})"
        return one_line(f"{self.name}{text}")


class ResultCodec(_Codec, Generic[T]):
    """Encode and decode the value of a task that succeeded."""

    def __init__(self, tp: Any, size_check: PayloadSizeCheck) -> None:
        self.tp = tp
        super().__init__(_plain_test(tp), size_check)

    @classmethod
    def for_type(cls, tp: Any, size_check: PayloadSizeCheck | None = None) -> "ResultCodec[Any]":
        return ResultCodec[Any](tp, size_check or PayloadSizeCheck("the result"))

    @cached_property
    def adapter(self) -> "Adapter":
        return _value_adapter(self.tp, "the result")

    @property
    def max_bytes(self) -> int:
        return self.size_check.limits.max_bytes

    def encode(self, value: object) -> str:
        """Encode a value. Raises ResultTypeError for a value of another type, PayloadError for one that cannot be written."""
        return self._write(value, "the result cannot be stored", RESULT, ResultTypeError)

    def decode(self, text: str | bytes) -> T:
        return self._read(text, "the stored result does not fit its annotation", RESULT)


def _arguments_adapter(name: str, parameters: "Mapping[str, inspect.Parameter]") -> "Adapter":
    from horsies.model.pydantic_codec import arguments_adapter  # noqa: PLC0415 - loads pydantic

    return arguments_adapter(name, parameters)


def _value_adapter(tp: Any, what: str) -> "Adapter":
    from horsies.model.pydantic_codec import value_adapter  # noqa: PLC0415 - loads pydantic

    return value_adapter(tp, what)


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


def decode_error(text: str | bytes) -> TaskError:
    try:
        stored = _load(text)
        return TaskError(error_code=stored["error_code"], message=stored.get("message", ""), data=stored.get("data"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PayloadError(f"the stored error cannot be read: {one_line(repr(error))}") from None


def _error_json(code: str, message: str, data: str) -> str:
    return f'{{"error_code":{_quote(code)},"message":{_quote(message)},"data":{data}}}'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def _load(text: str | bytes) -> Any:
    value = _read_plain(text, _is_json)
    if value is not _NOT_PLAIN:
        return value
    from pydantic_core import from_json  # noqa: PLC0415 - plain errors do without

    return from_json(text)


def _data_json(data: object) -> str:
    plain = _write_plain(data, _is_json)
    if plain is not None:
        return plain.decode()
    for write in (_write_by_pydantic, _write_without_surrogates):
        try:
            text = write(data)
            _load(text)  # data that is nested too deeply can be written, but not read
        except Exception:  # noqa: BLE001, S112 - the data is the user's and can do anything; try the next way
            continue
        return text
    return _quote(_full_repr(data))


def _write_by_pydantic(data: object) -> str:
    from pydantic_core import to_json  # noqa: PLC0415 - plain errors do without

    return to_json(data, bytes_mode="base64", inf_nan_mode="strings", fallback=_full_repr).decode()


def _write_without_surrogates(data: object) -> str:
    return _storable(json.dumps(data, ensure_ascii=False, allow_nan=False, default=_full_repr))


def _full_repr(value: object) -> str:
    try:
        return _storable(repr(value))
    except Exception:  # noqa: BLE001 - a repr of the user's own
        return f"<{type(value).__name__} that has no repr>"


def _quote(text: str) -> str:
    return json.dumps(_storable(text), ensure_ascii=False)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair has no UTF-8 form


# -- plain values


class _NotPlain(Enum):
    NOT_PLAIN = auto()


_NOT_PLAIN: Final = _NotPlain.NOT_PLAIN


def _plain_test(tp: Any) -> PlainTest | None:
    """Return the test for values of an annotation; None if pydantic must handle them all."""
    for known, test in _KNOWN:
        if tp is known:
            return test
    origin, inner = get_origin(tp), get_args(tp)
    if origin is list:
        outer, item = _is_list_of, inner[0]
    elif origin is dict and inner[0] is str:
        outer, item = _is_dict_of, inner[1]
    elif origin in {Union, types.UnionType} and len(inner) == 2 and type(None) in inner:  # noqa: PLR2004 - `T | None`
        outer, item = _is_none_or, inner[0] if inner[1] is type(None) else inner[1]
    else:
        return None
    test = _plain_test(item)
    return partial(outer, test) if test else None


def _arguments_test(parameters: Iterable[Parameter]) -> PlainTest | None:
    """Return the test for a dict of arguments by name; None if pydantic must handle one of them."""
    tests: dict[str, PlainTest] = {}
    required: set[str] = set()
    for parameter in parameters:
        test = _plain_test(parameter.annotation)
        if test is None:
            return None
        tests[parameter.name] = test
        if parameter.is_required:
            required.add(parameter.name)
    return partial(_are_arguments, tests, required)


def _read_plain(text: str | bytes, test: PlainTest) -> Any | _NotPlain:
    """Return the value of a JSON text, if pydantic is certain to read the same."""
    if isinstance(text, bytes) or len(text) > MAX_TEXT or "\\u" in text:  # which may be half of a surrogate pair
        return _NOT_PLAIN
    try:
        value = _DECODER.decode(text)
        if not text.isascii():
            text.encode()
    except (ValueError, RecursionError):
        return _NOT_PLAIN
    return value if test(value) else _NOT_PLAIN


def _write_plain(value: object, test: PlainTest) -> bytes | None:
    """Return the JSON of a value, if pydantic is certain to write the same."""
    if not test(value):
        return None
    try:
        return _ENCODER.encode(value).encode()
    except ValueError:  # half of a surrogate pair, or a number with more digits than Python writes
        return None


def _is_none(value: object) -> bool:
    return value is None


def _is_bool(value: object) -> bool:
    return value is True or value is False


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_float(value: object) -> bool:
    # Python and pydantic write exponents differently, and also infinity and NaN, which have an n in their repr.
    return type(value) is float and "e" not in (text := repr(value)) and "n" not in text


def _is_str(value: object) -> bool:
    return type(value) is str


def _is_list_of(test: PlainTest, value: object) -> bool:
    if type(value) is not list:
        return False
    items = cast("list[object]", value)
    return len(items) <= MAX_ITEMS and _all(test, items)


def _is_dict_of(test: PlainTest, value: object) -> bool:
    if type(value) is not dict:
        return False
    items = cast("dict[object, object]", value)
    return len(items) <= MAX_ITEMS and _all(_is_str, items) and _all(test, items.values())


def _all(test: PlainTest, items: Iterable[object]) -> bool:
    kind = _TYPE_ALONE.get(test)  # for these the type decides, without a call for each item
    return all(map(test, items)) if kind is None else set(map(type, items)) <= {kind}


def _are_arguments(tests: Mapping[str, PlainTest], required: set[str], value: object) -> bool:
    if type(value) is not dict:
        return False
    given = cast("dict[str, object]", value)
    if not required <= given.keys():
        return False
    for name, item in given.items():
        test = tests.get(name)
        if test is None or not test(item):
            return False
    return True


def _is_none_or(test: PlainTest, value: object) -> bool:
    return value is None or test(value)


def _is_json(value: object, depth: int = MAX_DEPTH) -> bool:
    """Return whether a value is plain at every level. A value that contains itself is not: the depth is limited."""
    scalar = _SCALARS.get(type(value))
    if scalar:
        return scalar(value)
    inner = partial(_is_json, depth=depth - 1)
    return depth > 0 and (_is_list_of(inner, value) or _is_dict_of(inner, value))


_SCALARS: Final[dict[type, PlainTest]] = {
    type(None): _is_none,
    bool: _is_bool,
    int: _is_int,
    float: _is_float,
    str: _is_str,
}
_TYPE_ALONE: Final[dict[PlainTest, type]] = {_is_none: type(None), _is_bool: bool, _is_int: int, _is_str: str}
# Compared by identity: an annotation need not be hashable.
_KNOWN: Final[tuple[tuple[Any, PlainTest], ...]] = (
    *_SCALARS.items(),
    (None, _is_none),
    (Any, _is_json),
    (object, _is_json),
    (list, partial(_is_list_of, _is_json)),
    (dict, partial(_is_dict_of, _is_json)),
)
