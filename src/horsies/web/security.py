"""Who a request is from, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a user may do."""

    READ_ONLY = "read-only"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class User:
    """Who is signed in. Actions are recorded under the name."""

    name: str
    role: Role = Role.READ_ONLY
