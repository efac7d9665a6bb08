"""Arguments and results as JSON, by their annotations. Nothing is pickled, and no payload names a class to import.

Writing is strict (`"1"` is no int) and reading is lax, as JSON needs it. What has been written is read back once before
it leaves: a value that only the other side would choke on (a tuple as a dict key), or that would arrive as another one (NaN in
a model that writes null for it), is refused where it was made. By name in both directions: aliases are for other JSON than ours.

A codec is built once per task, at decoration. The nodes of workflows pass some arguments and get the others from each other:
what that takes is built when the first such node is, and kept.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from horsies.model.annotations import (
    arguments_adapter,
    name_of,
    ok_type,
    signature_of,
    value_adapter,
    without_wanted,
)
from horsies.model.arrival import change
from horsies.model.errors import PayloadError, ResultTypeError
from horsies.model.graph import Wanted
from horsies.model.refusal import UNWRITABLE, advised, changed, one_line, report
from horsies.model.result import TaskError
from horsies.model.sizes import DEFAULT_MAX_BYTES, SizeWatch

__all__ = ["ArgumentsCodec", "ResultCodec", "ResultTypeError", "decode_error", "encode_error", "ok_type"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ArgumentsCodec:
    """The arguments of one function: a call on one side, one JSON object by parameter name, a call on the other."""

    name: str
    signature: inspect.Signature
    adapter: TypeAdapter[dict[str, Any]]
    by_place: tuple[str, ...]  # in a signature of names only: those that a call may pass by position, too ...
    by_name: frozenset[str]  # ... all of them ...
    required: frozenset[str]  # ... and those without a default
    positional: tuple[inspect.Parameter, ...]  # those that a call must pass by position
    var_positional: str | None
    var_keyword: str | None
    watch: SizeWatch
    wants: frozenset[Wanted] = frozenset()  # filled in when it runs: nobody passes these
    needs: frozenset[Wanted] = (
        frozenset()
    )  # those of them without a default: it cannot run where they are not to be had
    _parts: dict[object, TypeAdapter[Any]] = field(
        default_factory=dict[object, TypeAdapter[Any]], compare=False, repr=False
    )

    @classmethod
    def for_function(cls, fn: Callable[..., object], watch: SizeWatch | None = None) -> "ArgumentsCodec":
        signature, wanted = without_wanted(fn, signature_of(fn))
        by_kind: dict[Any, list[inspect.Parameter]] = {}
        for parameter in signature.parameters.values():
            by_kind.setdefault(parameter.kind, []).append(parameter)
        positional = by_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
        rest = by_kind.get(inspect.Parameter.VAR_POSITIONAL)
        if rest:  # a name before *args cannot be given by keyword once there are more positions
            positional = [*positional, *by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])]
        others = by_kind.get(inspect.Parameter.VAR_KEYWORD)
        simple = () if positional or rest or others else tuple(signature.parameters.values())
        return cls(
            name=name_of(fn),
            signature=signature,
            adapter=arguments_adapter(name_of(fn), signature.parameters),
            by_place=tuple(each.name for each in simple if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD),
            by_name=frozenset(each.name for each in simple),
            required=frozenset(each.name for each in simple if each.default is inspect.Parameter.empty),
            positional=tuple(positional),
            var_positional=rest[0].name if rest else None,
            var_keyword=others[0].name if others else None,
            watch=watch or SizeWatch(f"the arguments of {name_of(fn)}()"),
            wants=frozenset(wanted),
            needs=frozenset(name for name, parameter in wanted.items() if parameter.default is parameter.empty),
        )

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if self.needs:
            names = " and ".join(sorted(self.needs))
            raise PayloadError(
                f"{self.name}() takes {names}, which only a workflow can give; run it as a node of one, "
                f"or give the parameter a default, as in workflow_ctx: WorkflowContext | None = None"
            )
        given = self._bound(args, kwargs)
        return _write(self.adapter, given, f"{self.name}() cannot be sent", "argument", PayloadError, self.watch)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What stands for which parameter. `signature.bind` takes longer than all the rest of a send's encoding, so it is asked only
        where names and positions do not say it all, or do not fit.
        """
        given = {**dict(zip(self.by_place, args, strict=False)), **kwargs}
        if len(given) == len(args) + len(kwargs) and self.required <= given.keys() <= self.by_name:
            return given
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise PayloadError(
                f"{self.name}() cannot be called like this: {error}; call it as {self._shown_signature()}"
            ) from None

    def encode_some(self, given: Mapping[str, Any]) -> str:
        """Some of the arguments by name, for a call whose others are not there yet."""
        parameters = {name: parameter for name, parameter in self.signature.parameters.items() if name in given}
        adapter = self._part(frozenset(given), lambda: arguments_adapter(self.name, parameters))
        return _write(adapter, given, f"{self.name}()", "argument", PayloadError, self.watch)

    def encode_piece(self, tp: Any, value: object, place: str) -> str:
        """A piece of an argument, such as one item of a list whose others are not there yet."""
        adapter = self._part(("piece", tp), lambda: value_adapter(tp, f"{self.name}(): '{place}'"))
        return _write(adapter, value, f"argument '{place}'", f"argument '{place}' at", PayloadError, self.watch)

    def _part(self, key: object, make: Callable[[], TypeAdapter[Any]]) -> TypeAdapter[Any]:
        try:
            known = self._parts.get(key)
        except TypeError:  # an annotation need not be hashable
            return make()
        if known is None:
            known = self._parts[key] = make()
        return known

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = _read(self.adapter, text, f"{self.name}() cannot be called with this payload", "argument")
        args = [values.pop(parameter.name, parameter.default) for parameter in self.positional]
        if self.var_positional:
            args += values.pop(self.var_positional, ())
        if self.var_keyword:
            values |= values.pop(self.var_keyword, {})
        return tuple(args), values

    def _shown_signature(self) -> str:
        try:
            shown = str(self.signature.replace(return_annotation=inspect.Signature.empty))
        except Exception:  # noqa: BLE001 - a default of the user's own, without a repr
            shown = f"({', '.join(self.signature.parameters)})"
        return one_line(f"{self.name}{shown}")


@dataclass(frozen=True, slots=True)
class ResultCodec(Generic[T]):
    """The good value of a task."""

    adapter: TypeAdapter[T]
    watch: SizeWatch

    @classmethod
    def for_type(cls, tp: Any, watch: SizeWatch | None = None) -> "ResultCodec[Any]":
        return ResultCodec(value_adapter(tp, "the result"), watch or SizeWatch("the result"))

    @property
    def max_bytes(self) -> int:
        return self.watch.limits.max_bytes

    def encode(self, value: object) -> str:
        """Raises ResultTypeError for a value of another type, PayloadError for one that cannot be written."""
        return _write(self.adapter, value, "the result cannot be stored", "value at", ResultTypeError, self.watch)

    def decode(self, text: str | bytes) -> T:
        return _read(self.adapter, text, "the stored result does not fit its annotation", "value at")


def encode_error(error: TaskError, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """An error always gets through: what cannot be written of its data is replaced by its repr, and what is too long is cut."""
    message, data = str(error.message), _data_json(error.data)
    text = _error_json(error.error_code, message, data)
    if len(text.encode()) <= max_bytes:
        return text
    longest = max_bytes // 16  # characters: one has up to six bytes in JSON, and up to seven in JSON inside JSON
    return _error_json(error.error_code, _cut(message, longest), to_json({"truncated": _cut(data, longest)}).decode())


def _error_json(code: str, message: str, data: str) -> str:
    return f'{{"error_code":{to_json(code).decode()},"message":{to_json(_storable(message)).decode()},"data":{data}}}'


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def decode_error(text: str | bytes) -> TaskError:
    try:
        stored = from_json(text)
        return TaskError(error_code=stored["error_code"], message=stored.get("message", ""), data=stored.get("data"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PayloadError(f"the stored error cannot be read: {one_line(repr(error))}") from None


def _data_json(data: object) -> str:
    for write in (_written_by_pydantic, _written_without_surrogates):
        try:
            text = write(data)
            from_json(text)  # what is nested too deeply can be written, but not read
        except Exception:  # noqa: BLE001, S112 - the data is the user's and can do anything; the next way is tried
            continue
        return text
    return to_json(_full_repr(data)).decode()


def _written_by_pydantic(data: object) -> str:
    return to_json(data, bytes_mode="base64", inf_nan_mode="strings", fallback=_full_repr).decode()


def _written_without_surrogates(data: object) -> str:
    return _storable(json.dumps(data, ensure_ascii=False, allow_nan=False, default=_full_repr))


def _write(
    adapter: TypeAdapter[Any],
    value: object,
    what: str,
    noun: str,
    mismatch: type[PayloadError],
    watch: SizeWatch,
) -> str:
    checked = _checked(adapter, value, what, noun, mismatch)
    payload = _dumped(adapter, checked, what)
    watch.look(payload, what)
    arrived = _read(adapter, payload, f"{what}: it could be written as JSON, but not read back", noun)
    if found := change(checked, arrived):
        raise PayloadError(
            f"{what}: it could be written as JSON, but would arrive changed:\n  - {changed(noun, *found)}"
        )
    return payload.decode()


def _checked(adapter: TypeAdapter[Any], value: object, what: str, noun: str, mismatch: type[PayloadError]) -> Any:
    try:
        return adapter.validator.validate_python(value, strict=True, by_alias=False, by_name=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        kind = PayloadError if all(problem["type"] in UNWRITABLE for problem in problems) else mismatch
        raise kind(report(what, noun, problems)) from None
    except Exception as error:  # a validator of the user's own
        raise PayloadError(f"{what}: {one_line(repr(error))}") from error


def _dumped(adapter: TypeAdapter[Any], checked: object, what: str) -> bytes:
    try:
        return adapter.serializer.to_json(checked, warnings="error", round_trip=True, by_alias=False)
    except PydanticSerializationError as error:
        raise PayloadError(f"{what}: {advised(error)}") from None
    except Exception as error:  # a serializer of the user's own
        raise PayloadError(f"{what}: {one_line(repr(error))}") from error


def _read(adapter: TypeAdapter[Any], text: str | bytes, what: str, noun: str) -> Any:
    try:
        return adapter.validator.validate_json(text, by_alias=False, by_name=True)
    except ValidationError as error:
        raise PayloadError(report(what, noun, error.errors(include_url=False))) from None
    except Exception as error:  # a validator of the user's own
        raise PayloadError(f"{what}: {one_line(repr(error))}") from error


def _full_repr(value: object) -> str:
    try:
        return _storable(repr(value))
    except Exception:  # noqa: BLE001 - a repr of the user's own
        return f"<{type(value).__name__} that has no repr>"


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair has no UTF-8 form
