"""How much memory this process has resident."""

import os
import sys
from collections.abc import Callable

MB = 1 << 20


def rss_meter() -> Callable[[], float]:
    """A function that tells the resident memory of this process in MB, cheap enough to ask after every task."""
    if sys.platform == "linux":
        return _statm_meter()
    import psutil  # noqa: PLC0415 - slow to import, and Linux has no need of it

    process = psutil.Process()
    return lambda: process.memory_info().rss / MB


def _statm_meter() -> Callable[[], float]:
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # of whoever opens it: to be made after a fork
    page_mb = os.sysconf("SC_PAGE_SIZE") / MB
    return lambda: int(os.pread(fd, 128, 0).split()[1]) * page_mb
