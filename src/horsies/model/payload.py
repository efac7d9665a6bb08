"""Payloads by way of pydantic: a value checked and written as JSON, a JSON text read and checked, and why not, in words."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from horsies.model.arrival import change
from horsies.model.errors import PayloadError
from horsies.model.refusal import UNWRITABLE, Change, Telling, advised, changed, one_line, report
from horsies.model.sizes import SizeWatch


@dataclass(frozen=True, slots=True)
class Adapter:
    """Writes and reads the values of one annotation."""

    by_type: TypeAdapter[Any]
    trusts_equality: bool
    """`==` tells whether a value has changed; otherwise it is compared part by part."""

    def write(self, value: object, what: str, telling: Telling, mismatch: type[PayloadError], watch: SizeWatch) -> str:
        checked = self._checked(value, what, telling, mismatch)
        payload = self._dumped(checked, what)
        watch.look(payload, what)
        arrived = self.read(payload, f"{what}: it could be written as JSON, but not read back", telling)
        if found := self._change(value, checked, arrived, payload):
            raise PayloadError(
                f"{what}: it could be written as JSON, but would arrive changed:\n  - {changed(telling, found)}"
            )
        return payload.decode()

    def _change(self, given: object, checked: object, arrived: object, payload: bytes) -> Change | None:
        if self.trusts_equality and _is_equal(given, arrived):
            return None
        is_same_json = cache(lambda: self._is_written_as(arrived, payload))
        return change(given, checked, arrived, is_same_json)

    def _is_written_as(self, value: object, payload: bytes) -> bool:
        try:
            return self._dumped(value, "") == payload
        except PayloadError:
            return False

    def read(self, text: str | bytes, what: str, telling: Telling) -> Any:
        try:
            return self.by_type.validator.validate_json(text, by_alias=False, by_name=True)
        except ValidationError as error:
            raise PayloadError(report(what, telling, error.errors(include_url=False))) from None
        except Exception as error:  # a validator of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def schemas(self) -> list[str]:
        """What its JSON must be like, to be compared with that of another; nothing where no schema can say it."""
        try:
            return [json.dumps(self.by_type.json_schema(by_alias=False), sort_keys=True)]
        except Exception:  # noqa: BLE001 - pydantic has no schema for some types, and runs the hooks of the user's own
            return []

    def _checked(self, value: object, what: str, telling: Telling, mismatch: type[PayloadError]) -> Any:
        try:
            return self.by_type.validator.validate_python(value, strict=True, by_alias=False, by_name=True)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            kind = PayloadError if all(problem["type"] in UNWRITABLE for problem in problems) else mismatch
            raise kind(report(what, telling, problems)) from None
        except Exception as error:  # a validator of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error

    def _dumped(self, checked: object, what: str) -> bytes:
        try:
            return self.by_type.serializer.to_json(checked, warnings="error", round_trip=True, by_alias=False)
        except PydanticSerializationError as error:
            raise PayloadError(f"{what}: {advised(error)}") from None
        except Exception as error:  # a serializer of the user's own
            raise PayloadError(f"{what}: {one_line(repr(error))}") from error


def _is_equal(given: object, arrived: object) -> bool:
    try:
        return (given == arrived) is True
    except Exception:  # noqa: BLE001 - an == of the user's own
        return False
