"""How a value with two halves is written: as `{"ok": value}` or `{"err": error}`, each by its own annotation."""

from collections.abc import Callable
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

Halves = dict[str, Any]


def halves_schema(
    good: Any,
    bad: Any,
    handler: GetCoreSchemaHandler,
    *,
    halved: Callable[[Any], Halves | None],
    joined: Callable[[Halves], Any],
) -> CoreSchema:
    """`halved` gives None for what is no such value."""
    halves = core_schema.typed_dict_schema(
        {
            "ok": core_schema.typed_dict_field(handler.generate_schema(good), required=False),
            "err": core_schema.typed_dict_field(handler.generate_schema(bad), required=False),
        },
        extra_behavior="forbid",
    )

    def taken_apart(value: Any) -> Halves:
        if (found := halved(value)) is None:
            raise PydanticCustomError("task_result", "Input should be a TaskResult")
        return found

    def put_together(found: Halves) -> Any:
        if len(found) != 1:
            raise PydanticCustomError("task_result", "Input should have one of 'ok' and 'err'")
        return joined(found)

    read = core_schema.no_info_after_validator_function(put_together, halves)
    return core_schema.json_or_python_schema(
        json_schema=read,
        python_schema=core_schema.no_info_before_validator_function(taken_apart, read),
        serialization=core_schema.wrap_serializer_function_ser_schema(
            lambda result, write: write(taken_apart(result)), schema=halves
        ),
    )
