"""Fingerprints of parameters: equal in every process, and different if payloads for one function may not fit another."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from horsies.model.codec import ArgumentsCodec

ROOT = Path(__file__).parents[2]


class Order(BaseModel):
    number: int


@dataclass
class Parcel:
    weight: float


class Marker:
    """Shown with its address."""


def plain(image: int, width: int = 800) -> None: ...
def with_model(order: Order, parcel: Parcel | None = None) -> None: ...
def with_marker(number: int = Marker()) -> None: ...  # type: ignore[assignment] # pyright: ignore[reportArgumentType]
def variadic(*numbers: int, **names: str) -> None: ...


FUNCTIONS = [plain, with_model, with_marker, variadic]


def fingerprint(fn: Callable[..., object]) -> int:
    return ArgumentsCodec(fn).fingerprint


@pytest.mark.promise("D2")
def test_the_fingerprint_of_a_function_is_the_same_in_every_process() -> None:
    source = (
        "from tests.model.test_fingerprint import FUNCTIONS, fingerprint; print(*[fingerprint(fn) for fn in FUNCTIONS])"
    )
    shown = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [int(word) for word in shown.split()] == [fingerprint(fn) for fn in FUNCTIONS]


@pytest.mark.promise("D2")
def test_every_change_of_the_parameters_changes_the_fingerprint() -> None:
    def base(image: int) -> None: ...
    def renamed(picture: int) -> None: ...
    def more(image: int, width: int) -> None: ...
    def optional(image: int = 1) -> None: ...
    def other_type(image: str) -> None: ...
    def by_name(*, image: int) -> None: ...
    def nothing() -> None: ...

    functions = [base, renamed, more, optional, other_type, by_name, nothing]
    assert len({fingerprint(fn) for fn in functions}) == len(functions)


@pytest.mark.promise("D2")
def test_a_new_field_in_a_model_changes_the_fingerprint() -> None:
    def old() -> Callable[..., object]:
        class Invoice(BaseModel):
            number: int

        def pay(invoice: Invoice) -> None: ...

        pay.__annotations__["invoice"] = Invoice
        return pay

    def new() -> Callable[..., object]:
        class Invoice(BaseModel):
            number: int
            currency: str

        def pay(invoice: Invoice) -> None: ...

        pay.__annotations__["invoice"] = Invoice
        return pay

    assert fingerprint(old()) != fingerprint(new())
    assert fingerprint(old()) == fingerprint(old())


@pytest.mark.parametrize(
    ("text", "has_them"),
    [
        ('{"image": 1}', True),
        ('{"image": 1, "width": "wrong"}', True),
        ('{"width": 1}', False),
        ('{"image": 1, "height": 1}', False),
        ("[]", True),
        ("not JSON", True),
        ("[" * 5_000 + "]" * 5_000, True),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_names_in_a_payload_show_whether_it_was_made_for_other_parameters(text: str, *, has_them: bool) -> None:
    assert ArgumentsCodec(plain).has_these_parameters(text) is has_them


def test_variadic_parameters_are_never_missing() -> None:
    codec = ArgumentsCodec(variadic)
    assert codec.has_these_parameters("{}")
    assert not codec.has_these_parameters('{"other": 1}')
