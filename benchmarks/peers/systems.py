"""Who takes part. The versions are in `versions/`, how each is spoken to in `adapters/`."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OURS = "horsies"


@dataclass(frozen=True, slots=True)
class System:
    name: str
    label: str
    settings: tuple[str, ...] = ("default", "best")
    needs_redis: bool = False

    @property
    def requirements(self) -> Path:
        return HERE / "versions" / f"{self.name}.txt"

    @property
    def adapter(self) -> str:
        return f"benchmarks.peers.adapters.{self.name}"


SYSTEMS = (
    System(OURS, "horsies (this)"),
    System("reference", "reference system"),
    System("procrastinate", "procrastinate"),
    System("pgqueuer", "pgqueuer"),
    System("awa", "awa-pg"),
    System("chancy", "chancy"),
    System("dbos", "DBOS"),
    System("celery", "Celery on Redis", needs_redis=True),
    System("dramatiq", "Dramatiq on Redis", needs_redis=True),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One system with one choice of settings: a row of the table."""

    system: System
    settings: str

    @property
    def label(self) -> str:
        return f"{self.system.label}, {self.settings}"

    @property
    def key(self) -> str:
        return f"{self.system.name}-{self.settings}"


def version_of(system: System) -> str:
    """What `versions/` pins, for the table; ours is this checkout."""
    if system.name == OURS:
        return "this checkout"
    first = system.requirements.read_text(encoding="utf-8").split()[0]
    return first.partition("==")[2]
