"""Eight situations at once, each made by real workers: each is named with its object and its cause, and nothing else is."""

import json

from horsies.doctor.findings import Finding, Severity
from tests.cli.conftest import run
from tests.fixtures.situations import LOCATOR, Situations


def problems(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.code.name: finding for finding in findings if finding.severity > Severity.INFO}


def test_each_is_named_with_its_cause(situations: Situations, database: str) -> None:
    planted = situations.planted
    assert len(planted) == 8
    found = problems(situations.app.ops.findings())
    assert found.keys() == {situation.code.name for situation in planted.values()}
    for situation in planted.values():
        finding = found[situation.code.name]
        assert finding.target == situation.target
        for word in situation.words:
            assert word in finding.seen, finding.seen
    report = run("doctor", LOCATOR, "--json", database_url=database)
    by_doctor = {finding["code"]: finding for finding in json.loads(report.out)["findings"]}
    for situation in planted.values():
        finding = by_doctor[situation.code.name]
        assert finding["target"] == {"kind": situation.target.kind, "id": situation.target.id}
        assert all(word in finding["seen"] for word in situation.words)
