"""What a worker and its children use of the machine, as numbers for a snapshot."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    memory_mb: float = 0.0
    cpu_percent: float = 0.0


class Health:
    """CPU is measured since the last look at the same process; the first look at one says 0."""

    def __init__(self) -> None:
        import psutil  # noqa: PLC0415 - children import this room's neighbours and need none of it

        self._psutil = psutil
        self._parent = psutil.Process()
        self._children: dict[int, psutil.Process] = {}

    def parent(self) -> Usage:
        return self._usage(self._parent)

    def children(self, pids: Iterable[int]) -> Usage:
        """All of them together; one that died meanwhile counts nothing."""
        wanted = set(pids)
        self._children = {pid: process for pid, process in self._children.items() if pid in wanted}
        usages = [self._usage(process) for pid in wanted if (process := self._process(pid))]
        return Usage(sum(usage.memory_mb for usage in usages), sum(usage.cpu_percent for usage in usages))

    def _process(self, pid: int) -> "psutil.Process | None":
        try:
            return self._children.setdefault(pid, self._psutil.Process(pid))
        except self._psutil.Error:
            return None

    def _usage(self, process: "psutil.Process") -> Usage:
        try:
            return Usage(process.memory_info().rss / MB, process.cpu_percent())
        except self._psutil.Error:
            return Usage()
