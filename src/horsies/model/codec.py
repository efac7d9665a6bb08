"""Arguments and results as JSON, by their annotations. Nothing is pickled, and no payload names a class to import.

Writing is strict (`"1"` is no int) and reading is lax, as JSON needs it. What has been written is read back once before
it leaves: a value that only the other side would choke on (a tuple as a dict key, a model that drops NaN) is refused
where it was made. By name in both directions: aliases are for other JSON than ours.

A codec is built once per task, at decoration; nothing here is cached besides.
"""

import inspect
import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, from_json, to_json

from horsies.model.annotations import NOT_JSON, arguments_adapter, name_of, ok_type, result_adapter, signature_of
from horsies.model.errors import PayloadError, ResultTypeError
from horsies.model.result import TaskError

__all__ = ["ArgumentsCodec", "ResultCodec", "ResultTypeError", "decode_error", "encode_error", "ok_type"]

T = TypeVar("T")

MAX_SHOWN: Final = 80
MAX_LINE: Final = 400
MAX_PROBLEMS: Final = 20
MAX_STEPS: Final = 12

# The value has the right type and still cannot be written.
_UNWRITABLE: Final = frozenset({NOT_JSON, "recursion_loop", "string_unicode"})
_SAYS_IT_ALL: Final = _UNWRITABLE | {"missing", "json_invalid"}

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = MAX_SHOWN


@dataclass(frozen=True, slots=True)
class ArgumentsCodec:
    """The arguments of one function: a call on one side, one JSON object by parameter name, a call on the other."""

    name: str
    signature: inspect.Signature
    adapter: TypeAdapter[dict[str, Any]]
    positional: tuple[inspect.Parameter, ...]  # those that a call must pass by position
    var_positional: str | None
    var_keyword: str | None

    @classmethod
    def for_function(cls, fn: Callable[..., object]) -> "ArgumentsCodec":
        signature = signature_of(fn)
        by_kind: dict[Any, list[inspect.Parameter]] = {}
        for parameter in signature.parameters.values():
            by_kind.setdefault(parameter.kind, []).append(parameter)
        positional = by_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
        rest = by_kind.get(inspect.Parameter.VAR_POSITIONAL)
        if rest:  # a name before *args cannot be given by keyword once there are more positions
            positional = [*positional, *by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])]
        others = by_kind.get(inspect.Parameter.VAR_KEYWORD)
        return cls(
            name=name_of(fn),
            signature=signature,
            adapter=arguments_adapter(fn, signature),
            positional=tuple(positional),
            var_positional=rest[0].name if rest else None,
            var_keyword=others[0].name if others else None,
        )

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        try:
            given = self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            takes = ", ".join(self.signature.parameters) or "no arguments"
            raise PayloadError(f"{self.name}() cannot be called like this: {error}; it takes {takes}") from None
        return _write(self.adapter, given, f"{self.name}() cannot be sent", "argument", PayloadError)

    def decode(self, text: str | bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = _read(self.adapter, text, f"{self.name}() cannot be called with this payload", "argument")
        args = [values.pop(parameter.name, parameter.default) for parameter in self.positional]
        if self.var_positional:
            args += values.pop(self.var_positional, ())
        if self.var_keyword:
            values |= values.pop(self.var_keyword, {})
        return tuple(args), values


@dataclass(frozen=True, slots=True)
class ResultCodec(Generic[T]):
    """The good value of a task."""

    adapter: TypeAdapter[T]

    @classmethod
    def for_type(cls, tp: Any) -> "ResultCodec[Any]":
        return ResultCodec(result_adapter(tp))

    def encode(self, value: object) -> str:
        """Raises ResultTypeError for a value of another type, PayloadError for one that cannot be written."""
        return _write(self.adapter, value, "the result cannot be stored", "value at", ResultTypeError)

    def decode(self, text: str | bytes) -> T:
        return _read(self.adapter, text, "the stored result does not fit its annotation", "value at")


def encode_error(error: TaskError) -> str:
    """An error always gets through: what cannot be written of its data is replaced by its repr."""
    code, message = to_json(error.error_code), to_json(_storable(str(error.message)))
    return f'{{"error_code":{code.decode()},"message":{message.decode()},"data":{_data_json(error.data)}}}'


def decode_error(text: str | bytes) -> TaskError:
    try:
        stored = from_json(text)
        return TaskError(error_code=stored["error_code"], message=stored.get("message", ""), data=stored.get("data"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PayloadError(f"the stored error cannot be read: {_one_line(repr(error))}") from None


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


def _write(adapter: TypeAdapter[Any], value: object, what: str, noun: str, mismatch: type[PayloadError]) -> str:
    try:
        checked = adapter.validate_python(value, strict=True, by_alias=False, by_name=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        kind = PayloadError if all(problem["type"] in _UNWRITABLE for problem in problems) else mismatch
        raise kind(_report(what, noun, problems)) from None
    except Exception as error:  # a validator of the user's own
        raise PayloadError(f"{what}: {_one_line(repr(error))}") from error
    try:
        text = adapter.dump_json(checked, warnings="error", round_trip=True, by_alias=False)
        adapter.validate_json(text, by_alias=False, by_name=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise PayloadError(_report(f"{what}: it could be written as JSON, but not read back", noun, problems)) from None
    except PydanticSerializationError as error:
        raise PayloadError(f"{what}: {_one_line(error)}") from None
    except Exception as error:  # a serializer of the user's own
        raise PayloadError(f"{what}: {_one_line(repr(error))}") from error
    return text.decode()


def _read(adapter: TypeAdapter[Any], text: str | bytes, what: str, noun: str) -> Any:
    try:
        return adapter.validate_json(text, by_alias=False, by_name=True)
    except ValidationError as error:
        raise PayloadError(_report(what, noun, error.errors(include_url=False))) from None
    except Exception as error:  # a validator of the user's own
        raise PayloadError(f"{what}: {_one_line(repr(error))}") from error


def _report(what: str, noun: str, problems: list[ErrorDetails]) -> str:
    lines = [f"\n  - {_problem_line(noun, problem)}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"\n  - and {len(problems) - MAX_PROBLEMS} more")
    return f"{what}:{''.join(lines)}"


def _problem_line(noun: str, problem: ErrorDetails) -> str:
    got = "" if problem["type"] in _SAYS_IT_ALL else f" (got {_short_repr(problem['input'])})"
    return f"{_place(noun, problem['loc'])}{_one_line(problem['msg'])}{got}"


def _place(noun: str, loc: tuple[int | str, ...]) -> str:
    """`('boxes', 0, 'width')` as `argument 'boxes[0].width': `."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc[:MAX_STEPS])
    return f"{noun} '{steps.removeprefix('.')}{'...' if len(loc) > MAX_STEPS else ''}': " if loc else ""


def _one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..."


def _short_repr(value: object) -> str:
    try:
        text = _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a repr of the user's own
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _full_repr(value: object) -> str:
    try:
        return _storable(repr(value))
    except Exception:  # noqa: BLE001 - a repr of the user's own
        return f"<{type(value).__name__} that has no repr>"


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair has no UTF-8 form
