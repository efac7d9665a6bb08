"""The end of a section: its history is checked, and kept with all logs if something is wrong with it."""

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


def judge(account: Account, history: History, fleet: Fleet, problems: Iterable[str] = ()) -> None:
    account.history = history
    account.violations = check(history)
    account.in_vain = Evidence(history).in_vain()
    account.problems += [*fleet.problems, *problems]
    if not account.is_good:
        account.kept = _keep(history, fleet.folder)


def _keep(history: History, folder: Path) -> Path:
    """What the tasks, the producers and the workers wrote, for whoever looks for the cause."""
    kept = Path(tempfile.mkdtemp(prefix="horsies-chaos-kept-"))
    shutil.copytree(folder, kept, dirs_exist_ok=True)
    text = json.dumps(asdict(history), indent=1, default=sorted)  # sets are all that JSON does not know
    (kept / "history.json").write_text(text, encoding="utf-8")
    return kept
