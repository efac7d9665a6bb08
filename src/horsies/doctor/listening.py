"""Notifications: whether one that is sent is heard, what stands in the way, and whether PostgreSQL can get rid of them."""

from horsies.db.load import load
from horsies.db.op import Op, one
from horsies.db.roundtrip import Hearing, RoundTrip, try_round_trip
from horsies.doctor.case import Case
from horsies.doctor.codes import Code
from horsies.doctor.finding import Finding
from horsies.model.config import PostgresConfig

MAX_USAGE = 0.1

SQL = load(__file__)


def probe_listening(config: PostgresConfig, case: Case) -> list[Finding]:
    """On connections of its own: it listens on one and notifies from the other."""
    trip = try_round_trip(config, case.check_timeout_s)
    found: list[Finding] = []
    if not trip.is_direct and trip.hearing is Hearing.HEARD:
        way = "past it" if trip.listens_directly else "through it"
        found.append(Finding(Code.POOLER_FOUND, f"database_url leads through a pooler; notifications arrive {way}"))
    finding = _finding(config, case, trip)
    return [*found, *([finding] if finding else [])]


def _finding(config: PostgresConfig, case: Case, trip: RoundTrip) -> Finding | None:
    match trip.hearing:
        case Hearing.HEARD:
            return None
        case Hearing.SHARED:
            missing = "listen_url is not set" if config.listen_url is None else "listen_url leads to the pooler as well"
            return Finding(Code.LISTEN_POOLED, missing)
        case Hearing.SILENT:
            return Finding(Code.LISTEN_SILENT, f"nothing arrived within {case.check_timeout_s:g} s")
        case Hearing.ELSEWHERE:
            return Finding(Code.LISTEN_ELSEWHERE, "the two addresses lead to different databases, or servers")
        case Hearing.UNREACHABLE:
            return Finding(Code.LISTEN_UNREACHABLE, trip.words)


def check_queue(_case: Case) -> Op[list[Finding]]:
    row = yield from one(SQL["get_queue_usage"]())
    usage, pids = row or (0.0, [])
    if usage <= MAX_USAGE:
        return []
    words = f"; in a transaction, oldest first: pid {', '.join(map(str, pids))}" if pids else ""
    seen = f"{usage:.0%} of the queue of notifications is in use{words}"
    return [Finding(Code.NOTIFY_QUEUE_FILLING, seen, {"usage": usage, "pids": pids})]
