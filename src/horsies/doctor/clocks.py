"""Clocks: of this machine, of those who send, and of the database before it was set."""

from horsies.db.statement import Op, execute, load, one
from horsies.doctor.findings import CheckContext, Finding, FindingCode

SQL = load(__file__)


def check_this_clock(case: CheckContext) -> Op[list[Finding]]:
    """What the round trip takes is not held against the clocks."""
    before = case.clock()
    row = yield from one(SQL["get_clock"]())
    after = case.clock()
    theirs = row[0] if row else 0.0
    skew_s = max(before - theirs, theirs - after, 0.0)
    if skew_s <= case.max_skew_s:
        return []
    ahead = "ahead of" if before > theirs else "behind"
    seen = f"this machine is {skew_s:.1f} s {ahead} the database"
    return [Finding(FindingCode.CLOCK_SKEW, seen, {"skew_s": round((before + after) / 2 - theirs, 3)})]


def check_other_clocks(case: CheckContext) -> Op[list[Finding]]:
    """A transaction that was long under way when it sent looks like a skew: a few such tasks are none."""
    ((ids,), (beats,)) = yield from execute(
        SQL["get_id_skew"](max_s=case.max_producer_skew_s), SQL["get_heartbeats_ahead"](max_s=case.max_skew_s)
    )
    found: list[Finding] = []
    looked, skewed, by_s = ids
    if skewed and skewed * 4 >= looked:
        ahead = "ahead" if by_s > 0 else "behind"
        seen = f"{skewed} of the {looked} newest ids were made by a clock that is {abs(by_s):.0f} s {ahead}"
        found.append(Finding(FindingCode.PRODUCER_CLOCK_SKEW, seen, {"tasks": skewed, "skew_s": round(by_s, 3)}))
    workers, ahead_s = beats
    if workers:
        seen = f"heartbeats of {workers} workers lie up to {ahead_s:.1f} s in the future"
        found.append(Finding(FindingCode.HEARTBEAT_AHEAD, seen, {"workers": workers, "ahead_s": round(ahead_s, 3)}))
    return found
