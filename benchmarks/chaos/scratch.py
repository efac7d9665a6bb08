"""A folder for servers of a run: directly in /tmp, because as root the server's user must be able to enter it, and socket paths must be short."""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="horsies-chaos-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
