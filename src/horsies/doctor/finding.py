"""Findings: a code, and what was seen, with its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from horsies.doctor.catalogue import CATALOGUE
from horsies.doctor.codes import Code, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """`seen` says it with numbers, for people; `data` has them, for programs."""

    code: Code
    seen: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def severity(self) -> Severity:
        return CATALOGUE[self.code].severity

    @property
    def cure(self) -> str:
        return CATALOGUE[self.code].cure


def worst(findings: "list[Finding]") -> Severity:
    return max((finding.severity for finding in findings), default=Severity.OK)
