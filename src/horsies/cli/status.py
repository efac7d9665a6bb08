"""`horsies status`: what is wrong, on the first screen.

The findings of the doctor's quick checks come first, then what they are based on. On a terminal the text is made to fit the screen: each part
has shorter versions, and the parts that matter least are shortened first. In a pipe, and with `--wide`, everything is printed.
"""

import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from horsies.app import Horsies
from horsies.cli.doctor import STYLES, finding_to_json
from horsies.cli.options import database_command
from horsies.cli.output import (
    UNLIMITED,
    Column,
    counts_text,
    cut,
    show_json,
    show_lines,
    table_lines,
    terminal_size,
    to_age,
    to_text,
    wide_option,
    wrap,
)
from horsies.cli.queues import queue_table
from horsies.cli.workers import dead_worker_table, worker_table
from horsies.db.broker import PostgresBroker
from horsies.db.errors import is_timeout
from horsies.doctor.findings import Finding, Severity
from horsies.model.database_url import mask_passwords
from horsies.model.errors import BrokerError, HorsiesError, NotPermittedError
from horsies.model.graph import WorkflowStatus
from horsies.model.text import plural, printable
from horsies.model.validation import format_duration
from horsies.ops.api import Ops
from horsies.ops.statistics import ErrorGroup, MinutePoint, sum_up
from horsies.schedules.control import ScheduleInfo
from horsies.tasks.inspect import TaskSummary, WorkerSummary
from horsies.tasks.queues import QueueSummary, ServerInfo
from horsies.tasks.unknown import MAX_COUNTED, UnknownTasks
from horsies.tasks.workers import DeadWorker

MINUTES: Final = 60
TOP: Final = 5  # groups of errors
FEW: Final = 3  # rows of a table that was shortened
WATCH_S: Final = 2.0
READ_TIMEOUT_S: Final = 2  # for each part
SLICE_S: Final = 1.0  # how often a screen is drawn while the database does not answer


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is shown, read at one time."""

    now: datetime
    server: ServerInfo
    findings: Sequence[Finding]
    queues: Sequence[QueueSummary]
    error_groups: Sequence[ErrorGroup]
    longest_running: Sequence[TaskSummary]
    workers: Sequence[WorkerSummary]
    dead_workers: Sequence[DeadWorker]
    schedules: Sequence[ScheduleInfo]
    unknown: Sequence[UnknownTasks]
    workflows: Mapping[WorkflowStatus, int]
    ended: Sequence[MinutePoint]
    not_permitted: Collection[str]
    """The names of the fields that the role of this process may not read. They are empty."""
    timed_out: Collection[str]
    """Those that could not be read in time, because of a lock or a slow server. They are empty, too."""

    @property
    def unread(self) -> Collection[str]:
        return [*self.not_permitted, *self.timed_out]


@dataclass(slots=True)
class Section:
    """A part of the screen. `versions` become shorter; the last one may be empty."""

    versions: Sequence[Sequence[Text]]
    shown: int = 0
    is_apart: bool = field(default=False)
    """An empty line precedes it, if there is room."""

    @property
    def lines(self) -> Sequence[Text]:
        lines = self.versions[self.shown]
        return [Text(), *lines] if self.is_apart and lines else lines


def _parse_interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a number of seconds; write the APP first: horsies status {text} --watch"
        ) from None
    if not 0.1 <= seconds <= 86_400:  # noqa: PLR2004 - explained in the message
        raise click.BadParameter(f"{text} is out of range; choose a number of seconds from 0.1 to 86400")
    return seconds


@database_command(
    click.command,
    click.option(
        "--watch", type=_parse_interval, is_flag=False, flag_value=str(WATCH_S), metavar="[SECONDS]",
        help="Keep it up to date until Ctrl-C; without a number, every 2 seconds.",
    ),
    wide_option,
    argument=True,
)  # fmt: skip
def status(target: Horsies, *, watch: float | None, as_json: bool) -> None:
    """Show what is wrong, then queues, failing tasks, workers and schedules.

    The problems come first, each with its cause and its fix. The text is made to fit the terminal; in a pipe, or with --wide, it is complete.
    The command stays cheap with a backlog of millions: waiting tasks are counted up to 100000 (a plus means more). Exit code 0, whatever was
    found: `horsies doctor` has an exit code for problems.

    With --watch, an outage of the database is shown, and the command continues when the database is back. With --watch --json, each line is a
    document, and {"error": ...} during an outage.

    \b
    horsies status shop:app --watch
    """
    limited = PostgresBroker(target.broker.config, purpose="status", statement_timeout_ms=1000 * READ_TIMEOUT_S)
    with closing(limited):
        ops = Ops(target, broker=limited)
        if watch is not None:
            with suppress(KeyboardInterrupt):
                _watch(target, ops, watch, as_json=as_json)
        elif as_json:
            show_json(_to_json(_read(ops)))
        else:
            width, height = terminal_size()
            show_lines(_render(target, _read(ops), width, height - 1 if height < UNLIMITED else height))


def _read(ops: Ops) -> Snapshot:
    """Read all parts. A role that may not read some of them sees the others, and so does everyone while a session holds a lock."""
    parts: dict[str, tuple[Callable[[], Any], Any]] = {
        "findings": (ops.findings, []),
        "queues": (ops.list_queues, []),
        "error_groups": (partial(ops.error_groups, hours=1, limit=TOP), []),
        "longest_running": (partial(ops.list_running, limit=1), []),
        "workers": (ops.list_workers, []),
        "dead_workers": (partial(ops.list_dead_workers, limit=TOP), []),
        "schedules": (ops.list_schedules, []),
        "unknown": (ops.list_unknown_tasks, []),
        "workflows": (ops.count_workflows, {}),
        "ended": (partial(ops.time_series, minutes=MINUTES), []),
    }
    found, not_permitted, timed_out = dict[str, Any](), list[str](), list[str]()
    for name, (read, nothing) in parts.items():
        try:
            found[name] = read()
        except BrokerError as error:
            if not isinstance(error, NotPermittedError) and not is_timeout(error.__cause__):
                raise
            found[name] = nothing
            (not_permitted if isinstance(error, NotPermittedError) else timed_out).append(name)
    found |= {"not_permitted": not_permitted, "timed_out": timed_out}
    return Snapshot(now=ops.read_clock(), server=ops.get_server_info(), **found)


def _to_json(snapshot: Snapshot) -> Mapping[str, Any]:
    waits = [queue.oldest_waiting_s for queue in snapshot.queues if queue.oldest_waiting_s is not None]
    return {
        "now": snapshot.now,
        "server": snapshot.server,
        "findings": [finding_to_json(each) for each in snapshot.findings],
        "queues": snapshot.queues,
        "error_groups": [{"id": each.id, **asdict(each)} for each in snapshot.error_groups],
        "longest_running": snapshot.longest_running,
        "workers": snapshot.workers,
        "dead_workers": snapshot.dead_workers,
        "schedules": Counter(info.state for info in snapshot.schedules),
        "failing_schedules": [info for info in snapshot.schedules if info.failures_in_a_row],
        "unknown": snapshot.unknown,
        "workflows": snapshot.workflows,
        "finished_last_hour": sum_up(snapshot.ended) if snapshot.ended else {},
        "oldest_waiting_s": max(waits, default=None),
        "not_permitted": snapshot.not_permitted,
        "timed_out": snapshot.timed_out,
    }


# -- staying live


def _watch(target: Horsies, ops: Ops, interval_s: float, *, as_json: bool) -> None:
    """Read again and again in a thread: while the database does not answer, the screen says so, and Ctrl-C still works."""
    console = Console(highlight=False)
    if as_json or not console.is_terminal:
        for snapshot, outage in _snapshots(ops, interval_s):
            if (update := outage or snapshot) and (outage is None or outage.is_new):
                _show_update(target, update, as_json=as_json)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for snapshot, outage in _snapshots(ops, interval_s):
            width, height = console.size
            above = outage.lines(width) if outage else []
            below = _render(target, snapshot, width, height - len(above)) if snapshot else []
            live.update(Group(*[*above, *below][:height]), refresh=True)


@dataclass(frozen=True, slots=True)
class Outage:
    """The database has not answered for this long."""

    message: str
    silent_s: float
    is_new: bool
    """An attempt has failed just now."""

    def lines(self, width: int) -> list[Text]:
        text = f"no answer from the database for {format_duration(self.silent_s)}; what is below is old, and it is tried again"
        reason = wrap("        ", self.message, width)[:3] if self.message else []
        return [*wrap("OUTAGE  ", text, width, "bold white on red"), *reason, Text()]


def _snapshots(ops: Ops, interval_s: float) -> Iterator[tuple[Snapshot | None, Outage | None]]:
    """Yield the newest snapshot whenever there is something new to show."""
    snapshot, message, answered = None, "", time.monotonic()
    results = SimpleQueue[Snapshot | BaseException]()
    while True:
        # A daemon: it may be blocked on a connection when Ctrl-C ends the process.
        threading.Thread(target=_read_into, args=[results, ops], name="status", daemon=True).start()
        while (result := _take(results, SLICE_S)) is None:
            silent_s = time.monotonic() - answered - interval_s
            if message or silent_s > 2 * SLICE_S:
                yield snapshot, Outage(message, max(0.0, silent_s), is_new=False)
        if isinstance(result, Snapshot):
            snapshot, message, answered = result, "", time.monotonic()
            yield snapshot, None
        elif not isinstance(result, HorsiesError):
            raise result
        else:
            message = mask_passwords(" ".join(str(result).split()))
            yield snapshot, Outage(message, time.monotonic() - answered, is_new=True)
        time.sleep(interval_s)


def _read_into(results: SimpleQueue[Snapshot | BaseException], ops: Ops) -> None:
    try:
        results.put(_read(ops))
    except BaseException as error:  # noqa: BLE001 - raised in the main thread
        results.put(error)


def _take(results: SimpleQueue[Snapshot | BaseException], timeout_s: float) -> Snapshot | BaseException | None:
    try:
        return results.get(timeout=timeout_s)
    except Empty:
        return None


def _show_update(target: Horsies, update: Snapshot | Outage, *, as_json: bool) -> None:
    match update:
        case Outage() if as_json:
            show_json({"error": update.message, "silent_s": update.silent_s}, indent=None)
        case Outage():
            show_lines(update.lines(UNLIMITED))
        case Snapshot() if as_json:
            show_json(_to_json(update), indent=None)
        case Snapshot():
            show_lines([*_render(target, update, UNLIMITED, UNLIMITED), Text()])


# -- the screen


def _render(target: Horsies, snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """Return the lines of the screen: at most `height` of them, if anyhow possible."""
    findings = Section(_finding_versions(snapshot.findings, width), is_apart=True)
    queues = Section(_queue_versions(target, snapshot, width), is_apart=True)
    errors = Section(_error_versions(snapshot, width), is_apart=bool(snapshot.error_groups))
    workers = Section(_worker_versions(snapshot, width), is_apart=True)
    dead = Section(_dead_versions(snapshot, width))
    schedules = Section(_schedule_versions(snapshot, width))
    longest = Section([list(_longest(snapshot, width))])
    unknown = Section([list(_unknown(snapshot, width)), []])
    totals = Section([_totals(snapshot), []])
    header = Section([[_header(target, snapshot, width)]])
    unread = Section([_unread(snapshot, width)])
    named = {
        "queues": queues,
        "error_groups": errors,
        "workers": workers,
        "dead_workers": dead,
        "longest_running": longest,
        "unknown": unknown,
        "schedules": schedules,
    }
    shown = [section for name, section in named.items() if name not in snapshot.unread]
    sections = [header, unread, findings, *shown, totals]
    # What the findings have said already goes before the findings are cut.
    shortened = [
        workers, queues, dead, errors, workers, schedules, queues, errors, findings, unknown, dead, schedules, totals, findings, findings,
    ]  # fmt: skip

    def has_room() -> bool:
        return sum(len(section.lines) for section in sections) <= height

    if not has_room():
        for section in (findings, queues, errors, workers):
            section.is_apart = False
    for section in shortened:
        if has_room():
            break
        section.shown = min(section.shown + 1, len(section.versions) - 1)
    if not has_room():
        findings.shown = len(findings.versions) - 1
    for section in sections:  # a later step may have made room for what was shortened before
        shown = section.shown
        section.shown = next((version for version in range(shown) if _fits(section, version, has_room)), shown)
    return [line for section in sections for line in section.lines][:height]


def _fits(section: Section, version: int, has_room: Callable[[], bool]) -> bool:
    section.shown = version
    return has_room()


def _header(target: Horsies, snapshot: Snapshot, width: int) -> Text:
    config, server = target.broker.config, snapshot.server
    version = server.server_version.partition(" ")[0]
    rest = f"  PostgreSQL {version}, schema {config.schema} {server.schema_version}  {to_text(snapshot.now)}"
    url, room = printable(mask_passwords(config.database_url)), max(10, width - len(rest))
    place = url if len(url) <= room else url.rpartition("@")[2].partition("?")[0]
    return Text(f"{cut(place, room)}{rest}", "dim")


def _finding_versions(findings: Sequence[Finding], width: int) -> list[list[Text]]:
    """Return the findings with their fixes; without them; with fewer and fewer lines, down to one for each; then with one for each code, so that many of a kind hide no other."""
    counts = Counter(each.severity for each in findings)
    words = [
        f"{count} {severity.word}{'' if count == 1 or severity is Severity.INFO else 's'}"
        for severity in reversed(Severity)
        if (count := counts[severity])
    ]
    worst = max((each.severity for each in findings), default=Severity.OK)
    title = Text(", ".join(words) or "no problems found", STYLES[worst])
    hint = [Text("fixes: horsies doctor", "dim")]
    seen = [_wrap_finding(each, width) for each in findings]
    fixes = [wrap("        fix: ", each.fix, width) if each.severity > Severity.INFO else [] for each in findings]
    if not findings:
        return [[title]]
    versions = [[title, *(line for one, fix in zip(seen, fixes, strict=True) for line in (*one, *fix))]]
    shown = [len(one) for one in seen]
    while True:
        lines = [_first(one, count, width) for one, count in zip(seen, shown, strict=True)]
        versions.append([title, *(line for one in lines for line in one), *hint])
        longest = max(shown)
        if longest == 1:
            same = Counter(each.code for each in findings)
            first = {each.code: each for each in reversed(findings)}
            kinds = [_wrap_finding(each, width, same[each.code]) for each in findings if first[each.code] is each]
            versions.append([title, *(line for one in kinds for line in _first(one, 1, width)), *hint])
            return versions
        shown[len(shown) - 1 - shown[::-1].index(longest)] -= 1  # the worst ones come first, and keep theirs


def _wrap_finding(found: Finding, width: int, count: int = 1) -> list[Text]:
    code = f"{found.code} ({count} of them)" if count > 1 else found.code
    return wrap(f"{found.severity.word:<8}", f"{code}: {found.seen}", width, STYLES[found.severity])


def _first(lines: Sequence[Text], count: int, width: int) -> list[Text]:
    """Return the first lines, with an ellipsis if there are more."""
    if count == len(lines):
        return [*lines]
    last = lines[count - 1].copy()
    last.rstrip()
    last.append(" ").append_text(Text(lines[count].plain.lstrip()))
    last.truncate(width, overflow="ellipsis")
    return [*lines[: count - 1], last]


def _queue_versions(target: Horsies, snapshot: Snapshot, width: int) -> list[list[Text]]:
    """Return the lines of all queues; of those with the most to say; their number."""
    everything = queue_table(target, snapshot.queues, snapshot.now, width)
    if not everything:
        return [[Text("queues         none has a task, a worker or a pause")]]
    first = sorted(snapshot.queues, key=lambda queue: (queue.paused_at is None, -(queue.oldest_waiting_s or 0.0)))[:FEW]
    more = _more(len(snapshot.queues) - FEW, "horsies queues list")
    return [
        everything,
        [*queue_table(target, first, snapshot.now, width), *more],
        [_fact("queues", f"{len(snapshot.queues)}: horsies queues list")],
    ]


def _error_versions(snapshot: Snapshot, width: int) -> list[list[Text]]:
    """Return the lines of the top failing tasks; of the first ones; their number."""
    if not snapshot.error_groups:
        return [[_fact("failing tasks", "none in the last hour")]]
    columns = [
        Column("FAILED TASK", shrink=12), "COUNT", Column("LAST", drop=2), Column("CODE", shrink=10), Column("MESSAGE", shrink=16),
    ]  # fmt: skip
    rows = [
        (each.task_name, each.count if each.is_complete else f"{each.count}+", to_age(each.last_at, snapshot.now), each.error_code, each.message)
        for each in snapshot.error_groups
    ]  # fmt: skip
    lines = table_lines(columns, rows, width)
    few = [*lines[: 1 + FEW], *_more(len(rows) - FEW, "horsies errors")]
    groups = sum(each.count for each in snapshot.error_groups)
    return [lines, few, [_fact("failing tasks", f"{plural(groups, 'failure')} in the last hour: horsies errors")]]


def _worker_versions(snapshot: Snapshot, width: int) -> list[list[Text]]:
    """Return the lines of all workers; of the first ones; their number."""
    if not snapshot.workers:
        return [[_fact("workers", "none is registered")]]
    lines = worker_table(snapshot.workers, width)
    count = len(snapshot.workers)
    few = [*lines[: 1 + FEW], *_more(count - FEW, "horsies workers list")]
    running, slots = (
        sum(worker.tasks_running for worker in snapshot.workers),
        sum(worker.processes * worker.concurrency for worker in snapshot.workers),
    )
    return [lines, few, [_fact("workers", f"{count}, {running} of {slots} slots busy: horsies workers list")]]


def _dead_versions(snapshot: Snapshot, width: int) -> list[list[Text]]:
    """Return the lines of the workers that died; their number."""
    if not snapshot.dead_workers:
        return [[]]
    count = len(snapshot.dead_workers)
    held = sum(worker.tasks_held for worker in snapshot.dead_workers)
    more = "+" if count == TOP else ""
    short = _fact(
        "dead workers", f"{count}{more} in the last day, with {plural(held, 'task')}: horsies workers list --dead"
    )
    return [dead_worker_table(snapshot.dead_workers, snapshot.now, width), [short], []]


def _schedule_versions(snapshot: Snapshot, width: int) -> list[list[Text]]:
    counts = Counter(info.state for info in snapshot.schedules)
    summary = _fact("schedules", counts_text(counts) or "none")
    failing = [info for info in snapshot.schedules if info.failures_in_a_row]
    lines = [
        line
        for info in failing
        for line in wrap(
            "               ",
            f"{info.name}: {info.failures_in_a_row} failed in a row, {info.last_error_code or info.last_status}; "
            f"see `horsies schedules show {shlex.quote(info.name)}`",
            width,
        )
    ]
    short = _fact("schedules", f"{counts_text(counts) or 'none'}; {len(failing)} failing: horsies schedules list")
    return [[summary, *lines], [short], []] if failing else [[summary], []]


def _longest(snapshot: Snapshot, width: int) -> Iterator[Text]:
    for task in snapshot.longest_running:
        words = f"{format_duration(task.running_for_s or 0.0)}, {to_text(task.task_name)} in queue {to_text(task.queue_name)}"
        yield _fact("longest task", f"{cut(words, max(20, width - 53))}, {task.id}")


def _unknown(snapshot: Snapshot, width: int) -> Iterator[Text]:
    for tasks in snapshot.unknown:
        why = "no worker can read the arguments of" if tasks.is_refused else "no worker knows"
        count = f"{tasks.count}{'+' if tasks.count >= MAX_COUNTED else ''}"
        words = f"{count} {'waits' if tasks.count == 1 else 'wait'} for {to_age(tasks.since, snapshot.now)}: {why} {to_text(tasks.task_name)}"
        yield _fact("unknown", cut(words, max(20, width - 15)))


def _totals(snapshot: Snapshot) -> list[Text]:
    parts = {kind: count for kind, count in sum_up(snapshot.ended).items() if count}
    total, more = sum(parts.values()), "" if all(point.is_complete for point in snapshot.ended) else "+"
    words = f": {counts_text(parts)}" if parts else ""
    lines = {
        "workflows": _fact("workflows", counts_text(snapshot.workflows) or "none under way"),
        "ended": _fact("last hour", f"{total}{more} ended, {total / MINUTES:.1f}{more} a minute{words}"),
    }
    return [line for name, line in lines.items() if name not in snapshot.unread]


def _unread(snapshot: Snapshot, width: int) -> list[Text]:
    fixes = {
        "not permitted  ": (snapshot.not_permitted, "grant SELECT on all tables of the schema to this user"),
        "timed out      ": (snapshot.timed_out, f"not read in {READ_TIMEOUT_S} s; look for a session that holds a lock (`pg_locks`)"),
    }  # fmt: skip
    return [
        line
        for prefix, (names, fix) in fixes.items()
        for line in (wrap(prefix, f"{', '.join(names).replace('_', ' ')}: {fix}", width) if names else ())
    ]


def _fact(name: str, value: str) -> Text:
    return Text(f"{name:<15}{value}")


def _more(count: int, command: str) -> list[Text]:
    return [Text(f"{count} more: {command}", "dim")] if count > 0 else []
