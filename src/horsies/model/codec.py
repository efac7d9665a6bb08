"""Arguments and results as JSON, by their annotations. Nothing is pickled, and no payload names a class to import.

Writing is strict (`"1"` is no int) and reading is lax, as JSON needs it. What has been written is read back once before
it leaves: a value that only the other side would choke on (a tuple as a dict key), or that would arrive as another one (NaN in
a model that writes null for it), is refused where it was made. By name in both directions: aliases are for other JSON than ours.

A codec is built once per task, at decoration. Plain values do without pydantic (`plain.py`), so for an annotation of such values its
adapter waits until a value is not plain. The nodes of workflows pass some arguments and get the others from each other: what that
takes is built when the first such node is, and kept.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from horsies.model import plain_json
from horsies.model.errors import PayloadError, ResultTypeError
from horsies.model.payload_errors import (
    DEFAULT_MAX_BYTES,
    GIVEN,
    RETURNED,
    SENT,
    PayloadSizeCheck,
    ProblemReport,
    one_line,
    short_repr,
)
from horsies.model.result import TaskError
from horsies.model.signature import Parameters, function_name, parameters_of

if TYPE_CHECKING:
    from inspect import Parameter, Signature

    from horsies.model.pydantic_codec import Adapter

# --------
# The error of a task as JSON. Like plain values, plain errors do without pydantic.


def encode_error(error: TaskError, max_bytes: int = DEFAULT_MAX_BYTES, task_id: str | None = None) -> str:
    """An error always gets through: what cannot be written of its data is replaced by its repr, and what is too long is cut.

    `task_id` is for errors that the library makes of a task: it is put into their data.
    """
    own = {} if task_id is None else {"task_id": task_id}
    message, data = str(error.message), _data_json(_with_own(error.data, own) if own else error.data)
    text = _error_json(error.error_code, message, data)
    if len(text.encode()) <= max_bytes:
        return text
    longest = max_bytes // 16  # characters: one has up to six bytes in JSON, and up to seven in JSON inside JSON
    cut = json.dumps({**own, "truncated": _storable(_cut(data, longest))}, ensure_ascii=False)
    return _error_json(error.error_code, _cut(message, longest), cut)


def _with_own(data: object, own: dict[str, str]) -> object:
    if data is None:
        return own
    return {**own, **cast("dict[str, Any]", data)} if isinstance(data, dict) else data


def _error_json(code: str, message: str, data: str) -> str:
    return f'{{"error_code":{_quoted(code)},"message":{_quoted(message)},"data":{data}}}'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def decode_error(text: str | bytes) -> TaskError:
    try:
        stored = _loaded(text)
        return TaskError(error_code=stored["error_code"], message=stored.get("message", ""), data=stored.get("data"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PayloadError(f"the stored error cannot be read: {one_line(repr(error))}") from None


def _loaded(text: str | bytes) -> Any:
    found = plain_json.read(text, plain_json.is_json)
    if found is not plain_json.NOT_PLAIN:
        return found
    from pydantic_core import from_json  # noqa: PLC0415 - see above

    return from_json(text)


def _data_json(data: object) -> str:
    found = plain_json.write(data, plain_json.is_json)
    if found is not None:
        return found.decode()
    for write in (_written_by_pydantic, _written_without_surrogates):
        try:
            text = write(data)
            _loaded(text)  # what is nested too deeply can be written, but not read
        except Exception:  # noqa: BLE001, S112 - the data is the user's and can do anything; the next way is tried
            continue
        return text
    return _quoted(_full_repr(data))


def _written_by_pydantic(data: object) -> str:
    from pydantic_core import to_json  # noqa: PLC0415 - see above

    return to_json(data, bytes_mode="base64", inf_nan_mode="strings", fallback=_full_repr).decode()


def _written_without_surrogates(data: object) -> str:
    return _storable(json.dumps(data, ensure_ascii=False, allow_nan=False, default=_full_repr))


def _full_repr(value: object) -> str:
    try:
        return _storable(repr(value))
    except Exception:  # noqa: BLE001 - a repr of the user's own
        return f"<{type(value).__name__} that has no repr>"


def _quoted(text: str) -> str:
    return json.dumps(_storable(text), ensure_ascii=False)


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair has no UTF-8 form


__all__ = ["ArgumentsCodec", "ResultCodec", "ResultTypeError", "decode_error", "encode_error"]

T = TypeVar("T")


class _Codec:
    """`is_plain`: what of its values can be written and read without pydantic; None: nothing."""

    def __init__(self, is_plain: plain_json.Test | None, watch: PayloadSizeCheck) -> None:
        self.is_plain = is_plain
        self.watch = watch

    def checked(self) -> Self:
        """An annotation that cannot be encoded is refused here."""
        if self.is_plain is None:
            _ = self.adapter
        return self

    @cached_property
    def adapter(self) -> "Adapter":
        raise NotImplementedError

    def _write(self, value: object, what: str, telling: ProblemReport, mismatch: type[PayloadError]) -> str:
        payload = plain_json.write(value, self.is_plain) if self.is_plain else None
        if payload is None:
            return self.adapter.write(value, what, telling, mismatch, self.watch)
        self.watch.look(payload, what)
        return payload.decode()

    def _read(self, text: str | bytes, what: str, telling: ProblemReport) -> Any:
        value = plain_json.read(text, self.is_plain) if self.is_plain else plain_json.NOT_PLAIN
        return self.adapter.read(text, what, telling) if value is plain_json.NOT_PLAIN else value


class ArgumentsCodec(_Codec):
    """The arguments of one function: a call on one side, one JSON object by parameter name, a call on the other."""

    def __init__(self, fn: Callable[..., object], parameters: Parameters, watch: PayloadSizeCheck) -> None:
        simple = parameters.simple
        super().__init__(None if simple is None else plain_json.test_for_arguments(simple), watch)
        self.name = function_name(fn)
        self._fn = fn
        self._is_simple = simple is not None
        self._names = tuple(each.name for each in simple or ())
        self._by_place = tuple(each.name for each in simple or () if each.is_positional)
        self._by_name = frozenset(self._names)
        self._required = frozenset(each.name for each in simple or () if each.is_required)
        self._positional = parameters.positional
        self.var_positional = parameters.var_positional
        self.var_keyword = parameters.var_keyword
        self.wants = parameters.wants
        self.needs = parameters.needs
        self._parts: dict[object, Adapter] = {}

    @classmethod
    def for_function(cls, fn: Callable[..., object], watch: PayloadSizeCheck | None = None) -> "ArgumentsCodec":
        watch = watch or PayloadSizeCheck(f"the arguments of {function_name(fn)}()")
        return cls(fn, parameters_of(fn), watch).checked()

    @cached_property
    def signature(self) -> "Signature":
        """As callers see it."""
        from horsies.model.signature import callers_signature  # noqa: PLC0415 - brings `inspect`

        return callers_signature(self._fn)

    @cached_property
    def adapter(self) -> "Adapter":
        return _arguments_adapter(self.name, self.signature.parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if self.needs:
            names = " and ".join(sorted(self.needs))
            raise PayloadError(
                f"{self.name}() takes {names}, which only a workflow can give; run it as a node of one, "
                f"or give the parameter a default, as in workflow_ctx: WorkflowContext | None = None"
            )
        given = self._bound(args, kwargs)
        return self._write(given, f"{self.name}() cannot be sent", GIVEN, PayloadError)

    def bound_by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """What stands for which parameter, in the order of these; None where names and positions do not say it all, or do not fit."""
        if not self._is_simple:
            return None
        given = {**dict(zip(self._by_place, args, strict=False)), **kwargs}
        if len(given) == len(args) + len(kwargs) and self._required <= given.keys() <= self._by_name:
            return {name: given[name] for name in self._names if name in given}
        return None

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """`signature.bind` takes longer than all the rest of a send's encoding, so it is asked only if it must."""
        given = self.bound_by_name(args, kwargs)
        if given is not None:
            return given
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise PayloadError(
                f"{self.name}() cannot be called like this: {error}; call it as {self._shown_signature()}"
            ) from None

    def encode_some(self, given: Mapping[str, Any]) -> str:
        """Some of the arguments by name, for a call whose others are not there yet."""
        ordered = {name: given[name] for name in self.signature.parameters if name in given}
        if self.is_plain and (payload := plain_json.write(ordered, self.is_plain)):
            self.watch.look(payload, f"{self.name}()")
            return payload.decode()
        parameters = {name: self.signature.parameters[name] for name in ordered}
        adapter = self._part(frozenset(given), lambda: _arguments_adapter(self.name, parameters))
        return adapter.write(given, f"{self.name}()", GIVEN, PayloadError, self.watch)

    def encode_piece(self, tp: Any, value: object, place: str, watch: PayloadSizeCheck | None = None) -> str:
        """A piece of an argument, such as one item of a list whose others are not there yet."""
        adapter = self._part(("piece", tp), lambda: _value_adapter(tp, f"{self.name}(): '{place}'"))
        telling = ProblemReport(noun=f"argument '{place}' at", shown=short_repr)
        return adapter.write(value, f"argument '{place}'", telling, PayloadError, watch or self.watch)

    def _part(self, key: object, make: "Callable[[], Adapter]") -> "Adapter":
        try:
            known = self._parts.get(key)
        except TypeError:  # an annotation need not be hashable
            return make()
        if known is None:
            known = self._parts[key] = make()
        return known

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = self._read(text, f"{self.name}() cannot be called with this payload", SENT)
        args = [values.pop(name, default) for name, default in self._positional]
        if self.var_positional:
            args += values.pop(self.var_positional, ())
        if self.var_keyword:
            values |= values.pop(self.var_keyword, {})
        return tuple(args), values

    def has_these_parameters(self, text: str | bytes) -> bool:
        """Whether a payload has the parameters of this function, whatever the values are. If not, it was made for another function."""
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
        """A number that differs from that of another function if payloads for one may not fit the other. The same in every process."""
        parameters = self.signature.parameters.values()
        parts = [f"{each.name} {each.kind.name} {each.default is each.empty}" for each in parameters]
        # A type that is not plain may be shown with an address, and its fields are not shown at all: its schema tells.
        parts += self.adapter.schemas() if self.is_plain is None else [repr(each.annotation) for each in parameters]
        text = "\n".join(parts)
        digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _shown_signature(self) -> str:
        try:
            shown = str(self.signature.replace(return_annotation=self.signature.empty))
        except Exception:  # noqa: BLE001 - a default of the user's own, without a repr
            shown = f"({', '.join(self.signature.parameters)})"
        return one_line(f"{self.name}{shown}")


class ResultCodec(_Codec, Generic[T]):
    """The good value of a task."""

    def __init__(self, tp: Any, watch: PayloadSizeCheck) -> None:
        super().__init__(plain_json.test_for(tp), watch)
        self.tp = tp

    @classmethod
    def for_type(cls, tp: Any, watch: PayloadSizeCheck | None = None) -> "ResultCodec[Any]":
        return ResultCodec[Any](tp, watch or PayloadSizeCheck("the result")).checked()

    @cached_property
    def adapter(self) -> "Adapter":
        return _value_adapter(self.tp, "the result")

    @property
    def max_bytes(self) -> int:
        return self.watch.limits.max_bytes

    def encode(self, value: object) -> str:
        """Raises ResultTypeError for a value of another type, PayloadError for one that cannot be written."""
        return self._write(value, "the result cannot be stored", RETURNED, ResultTypeError)

    def decode(self, text: str | bytes) -> T:
        return self._read(text, "the stored result does not fit its annotation", RETURNED)


def _arguments_adapter(function_name: str, parameters: Mapping[str, "Parameter"]) -> "Adapter":
    from horsies.model.pydantic_codec import arguments_adapter  # noqa: PLC0415 - brings pydantic

    return arguments_adapter(function_name, parameters)


def _value_adapter(tp: Any, what: str) -> "Adapter":
    from horsies.model.pydantic_codec import value_adapter  # noqa: PLC0415 - brings pydantic

    return value_adapter(tp, what)
