"""Workflows that stand still. In a healthy system some do for an instant, between two steps: only those that still do a little later count."""

from horsies.db.statement import Op, load, rows
from horsies.doctor.findings import LISTED, NAMED, CheckContext, Finding, FindingCode
from horsies.workflows.inspect import get_stuck_workflows

SQL = load(__file__)


def check_workflows(case: CheckContext) -> Op[list[Finding]]:
    first = yield from get_stuck_workflows()
    if not first:
        return []
    yield from rows(SQL["sleep"](seconds=case.look_again_s))
    still = [stuck for stuck in (yield from get_stuck_workflows()) if stuck in first]
    if not still:
        return []
    roots = sorted({stuck.root_id for stuck in still})
    named = "; ".join(f"{stuck.root_id}: {stuck.reason}" for stuck in still[:NAMED])
    seen = f"{len(roots)} workflows: {named}{'; …' if len(still) > NAMED else ''}"
    return [Finding(FindingCode.WORKFLOWS_STUCK, seen, {"count": len(roots), "workflow_ids": roots[:LISTED]})]
