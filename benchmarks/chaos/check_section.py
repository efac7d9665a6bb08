"""The end of a section: check its history, and keep it with all logs if something is wrong."""

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos.check import check
from benchmarks.chaos.evidence import Evidence
from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.history import History
from benchmarks.chaos.plan import Account


def check_section(account: Account, history: History, fleet: Fleet, problems: Iterable[str] = ()) -> None:
    account.history = history
    account.violations = check(history)
    account.late_runs = Evidence(history).late_runs()
    account.problems += [*fleet.problems, *problems]
    if not account.is_good:
        account.kept = _keep(history, fleet.folder)


def _keep(history: History, folder: Path) -> Path:
    """Keep what the tasks, the producers and the workers have written, for finding the cause."""
    kept = Path(tempfile.mkdtemp(prefix="horsies-chaos-kept-"))
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    text = json.dumps(asdict(history), indent=1, default=sorted)  # only sets need a conversion
    (kept / "history.json").write_text(text, encoding="utf-8")
    return kept
