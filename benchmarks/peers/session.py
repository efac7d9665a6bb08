"""One entry on a clean state: its adapter is asked, its workers can be started, and the starts of its tasks are seen."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import Asked, Workers, asking, environment, working
from benchmarks.peers.servers import Servers
from benchmarks.peers.systems import Entry

OPEN_S = 60


@dataclass(frozen=True, slots=True)
class Starts:
    """The files to which tasks append. Only new lines are read: the reader shares the cores with the workers."""

    folder: Path
    _seen: dict[Path, tuple[int, int]] = field(default_factory=dict[Path, tuple[int, int]])

    def count(self) -> int:
        """How many starts there were so far, also those of a task that began twice."""
        for path in self.folder.iterdir():
            size, lines = self._seen.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(size)
                new = file.read()
            self._seen[path] = (size + len(new), lines + new.count(b"\n"))
        return sum(lines for _, lines in self._seen.values())

    def between(self, first: int, beyond: int) -> list[tuple[int, float]]:
        """Number and moment of every start of a task with a number in this range, in order of time."""
        lines = [line.split() for path in self.folder.iterdir() for line in _whole_lines(path)]
        starts = ((int(number), float(moment)) for number, moment in lines)
        return sorted((start for start in starts if first <= start[0] < beyond), key=lambda start: start[1])


def _whole_lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").rpartition("\n")[0].splitlines()


@dataclass(frozen=True, slots=True)
class Bench:
    ask: Asked
    about: dict[str, Any]
    starts: Starts
    env: dict[str, str]
    folder: Path

    @contextmanager
    def workers(self, kind: str = "plain") -> Generator[Workers]:
        commands = self.about["async_workers" if kind == "async" else "workers"]
        with working(commands, self.env, self.folder / "worker.log", self.folder) as workers:
            yield workers


@dataclass(frozen=True, slots=True)
class Sessions:
    servers: Servers
    entry: Entry
    python: Path
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the adapter reported about itself when it was last opened."""

    @contextmanager
    def open(self) -> Generator[Bench]:
        url = self.servers.clean_state(self.entry.system.name)
        starts, work = self.servers.new_folder(), self.servers.new_folder()
        env = environment(
            {
                "PEERS_DATABASE_URL": url,
                "PEERS_REDIS_URL": self.servers.redis_url,
                "PEERS_SETTINGS": self.entry.settings,
                "PEERS_STARTS": str(starts),
                "PEERS_FOLDER": str(work),
            }
        )
        with asking(self.python, self.entry.system.adapter, env, work / "adapter.log") as ask:
            self.about.update(ask("open", within_s=OPEN_S))
            yield Bench(ask, self.about, Starts(starts), env, work)
