"""The output of a run: a progress line, and a table or JSON at the end."""

import json
import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.chaos.check import Rule, by_rule
from benchmarks.chaos.plan import Account

SHOWN = 20


class Progress:
    """On a terminal, one line that is overwritten; elsewhere one line per section."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._section = ""

    def show(self, section: str, what: str) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{section}: {what}")
            sys.stderr.flush()
        elif section != self._section:
            sys.stderr.write(f"{section} ...\n")
        self._section = section

    def end(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")


def summary(accounts: Sequence[Account], seed: int) -> dict[str, object]:
    """Return the report for JSON. Its keys are stable."""
    return {
        "seed": seed,
        "good": all(account.is_good for account in accounts),
        "sections": [_as_dict(a) for a in accounts],
    }


def _as_dict(account: Account) -> dict[str, object]:
    rows = account.history.rows
    return {
        "section": account.section,
        "skipped": account.skipped,
        "interrupted": account.interrupted,
        "seconds": round(account.seconds, 1),
        "tasks": len(rows),
        "workflows": len(account.history.flows),
        "statuses": dict(sorted(Counter(row.status for row in rows).items())),
        "attempts_crashed": _crashes(account),
        "late_runs": len(account.late_runs),
        "longest_late_run_s": round(max(account.late_runs, default=0.0), 3),
        "unknown_sends": sum(sent.outcome == "unknown" for sent in account.history.sent),
        "faults": dict(sorted(account.faults.items())),
        "violations": {str(rule): count for rule, count in by_rule(account.violations).items()},
        "problems": account.problems,
        "kept": None if account.kept is None else str(account.kept),
        "examples": [str(violation) for violation in account.violations[:SHOWN]],
    }


def _crashes(account: Account) -> int:
    """Count the attempts that ended with the crash of a child or a worker."""
    codes = [code for row in account.history.rows for code in (row.error_code, *(f.error_code for f in row.failed))]
    return codes.count("WORKER_CRASHED")


def print_json(accounts: Sequence[Account], seed: int) -> None:
    print(json.dumps(summary(accounts, seed), indent=2))


def print_tables(accounts: Sequence[Account], seed: int) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    done = [account for account in accounts if account.skipped is None]
    console.print(_table("what happened", done, _event_counts(done)))
    console.print(_table("violations", done, _violations(done)))
    for account in accounts:
        _print_problems(console, account)
    console.print(f"seed {seed}: " + ("no violation" if all(a.is_good for a in accounts) else "VIOLATIONS"))


def _table(title: str, accounts: Sequence[Account], lines: dict[str, list[int]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in [*(account.section for account in accounts), "all"]:
        table.add_column(name, justify="right")
    for name, numbers in lines.items():
        table.add_row(name, *map(str, [*numbers, sum(numbers)]))
    return table


def _event_counts(accounts: Sequence[Account]) -> dict[str, list[int]]:
    kinds = sorted({kind for account in accounts for kind in account.faults})
    statuses = sorted({row.status for account in accounts for row in account.history.rows})
    counted = [Counter(row.status for row in account.history.rows) for account in accounts]
    return {
        "seconds": [round(account.seconds) for account in accounts],
        "tasks": [len(account.history.rows) for account in accounts],
        **{f"  {status}": [count[status] for count in counted] for status in statuses},
        "workflows": [len(account.history.flows) for account in accounts],
        "attempts that crashed": [_crashes(account) for account in accounts],
        "late runs (after the end of the attempt)": [len(account.late_runs) for account in accounts],
        "sends of unknown outcome": [
            sum(sent.outcome == "unknown" for sent in account.history.sent) for account in accounts
        ],
        **{f"fault: {kind}": [account.faults[kind] for account in accounts] for kind in kinds},
    }


def _violations(accounts: Sequence[Account]) -> dict[str, list[int]]:
    counted = [by_rule(account.violations) for account in accounts]
    rules = {str(rule): [count[rule] for count in counted] for rule in Rule}
    return rules | {"problems of workers": [len(account.problems) for account in accounts]}


def _print_problems(console: Console, account: Account) -> None:
    if account.skipped is not None:
        console.print(f"section {account.section} was skipped: {account.skipped}")
    if account.interrupted:
        console.print(f"section {account.section} was interrupted; what had happened by then was checked")
    for words in [*map(str, account.violations[:SHOWN]), *account.problems]:
        console.print(f"{account.section}: {words}", markup=False, highlight=False)
    if account.kept is not None:
        console.print(f"{account.section}: history and logs are kept in {account.kept}", soft_wrap=True)
    if len(account.violations) > SHOWN:
        console.print(f"{account.section}: and {len(account.violations) - SHOWN} more")
