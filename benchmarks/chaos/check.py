"""The checker: every guarantee of delivery as a rule over a history. Pure; its tests use forged histories."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.chaos import crash_rules, flow_rules, task_rules
from benchmarks.chaos.evidence import Evidence, Finding
from benchmarks.chaos.history import History


class Rule(StrEnum):
    LOST = "lost"
    NOT_ENDED = "never ended"
    SENT_TWICE = "sent twice"
    ENDED_TWICE = "ended twice"
    STARTED_TWICE = "attempt started twice"
    UNCOUNTED = "start not counted"
    CAP = "cap exceeded"
    KEY = "key shared"
    RESULT = "wrong result"
    POLICY = "against its policy"
    DEATH = "died without cause"
    EARLY = "started too early"
    LATE = "started too late"
    CANCEL = "ran after its cancellation"
    FLOW = "workflow wrong"
    ORDER = "out of order"


RULES: dict[Rule, Callable[[Evidence], Finding]] = {
    Rule.LOST: task_rules.lost,
    Rule.NOT_ENDED: task_rules.not_ended,
    Rule.SENT_TWICE: task_rules.sent_twice,
    Rule.ENDED_TWICE: task_rules.ended_twice,
    Rule.STARTED_TWICE: task_rules.started_twice,
    Rule.UNCOUNTED: task_rules.uncounted,
    Rule.CAP: task_rules.cap_exceeded,
    Rule.KEY: task_rules.key_shared,
    Rule.RESULT: task_rules.wrong_result,
    Rule.POLICY: crash_rules.against_policy,
    Rule.DEATH: crash_rules.without_cause,
    Rule.EARLY: task_rules.too_early,
    Rule.LATE: task_rules.too_late,
    Rule.CANCEL: crash_rules.after_cancel,
    Rule.FLOW: flow_rules.flow_wrong,
    Rule.ORDER: task_rules.out_of_order,
}


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    entity: str
    problem: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.entity}: {self.problem}"


def check(history: History) -> list[Violation]:
    """Return everything that is wrong with it."""
    evidence = Evidence(history)
    return [Violation(rule, *found) for rule, find in RULES.items() for found in find(evidence)]


def by_rule(violations: list[Violation]) -> dict[Rule, int]:
    """Count the violations of every rule, including those with none."""
    counted = Counter(violation.rule for violation in violations)
    return {rule: counted[rule] for rule in Rule}
