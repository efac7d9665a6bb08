"""Notifications: whether one that is sent is heard, what stands in the way, and whether PostgreSQL can get rid of them."""

from horsies.db.listen_check import ListenReport, ListenStatus, check_listen
from horsies.db.statement import Op, load, one
from horsies.doctor.findings import CheckContext, Finding, FindingCode
from horsies.model.config import PostgresConfig

MAX_USAGE = 0.1

SQL = load(__file__)


def probe_listening(config: PostgresConfig, case: CheckContext) -> list[Finding]:
    """On connections of its own: it listens on one and notifies from the other."""
    trip = check_listen(config, case.check_timeout_s, case.pooler_checks)
    found: list[Finding] = []
    if not trip.is_direct and trip.status is ListenStatus.RECEIVED:
        way = "past it" if trip.listens_directly else "through it"
        found.append(
            Finding(FindingCode.POOLER_FOUND, f"database_url leads through a pooler; notifications arrive {way}")
        )
    finding = _finding(config, case, trip)
    return [*found, *([finding] if finding else [])]


def _finding(config: PostgresConfig, case: CheckContext, trip: ListenReport) -> Finding | None:
    match trip.status:
        case ListenStatus.RECEIVED:
            return None
        case ListenStatus.SHARED_SESSION:
            missing = "listen_url is not set" if config.listen_url is None else "listen_url leads to the pooler as well"
            return Finding(FindingCode.LISTEN_POOLED, missing)
        case ListenStatus.NOT_RECEIVED:
            return Finding(FindingCode.LISTEN_SILENT, f"nothing arrived within {case.check_timeout_s:g} s")
        case ListenStatus.OTHER_DATABASE:
            return Finding(FindingCode.LISTEN_ELSEWHERE, "the two addresses lead to different databases, or servers")
        case ListenStatus.UNREACHABLE:
            return Finding(FindingCode.LISTEN_UNREACHABLE, trip.error)


def check_queue(_case: CheckContext) -> Op[list[Finding]]:
    row = yield from one(SQL["get_queue_usage"]())
    usage, pids = row or (0.0, [])
    if usage <= MAX_USAGE:
        return []
    words = f"; in a transaction, oldest first: pid {', '.join(map(str, pids))}" if pids else ""
    seen = f"{usage:.0%} of the queue of notifications is in use{words}"
    return [Finding(FindingCode.NOTIFY_QUEUE_FILLING, seen, {"usage": usage, "pids": pids})]
