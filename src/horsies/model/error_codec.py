"""The error of a task as JSON. Like plain values, plain errors do without pydantic."""

import json
from typing import Any, cast

from horsies.model import plain
from horsies.model.errors import PayloadError
from horsies.model.refusal import one_line
from horsies.model.result import TaskError
from horsies.model.sizes import DEFAULT_MAX_BYTES


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
    found = plain.read(text, plain.is_json)
    if found is not plain.UNSURE:
        return found
    from pydantic_core import from_json  # noqa: PLC0415 - see above

    return from_json(text)


def _data_json(data: object) -> str:
    found = plain.write(data, plain.is_json)
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
