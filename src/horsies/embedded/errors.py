"""What the embedded PostgreSQL raises, always saying what to change."""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from horsies.model.errors import BrokerError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


class EmbeddedPostgresError(BrokerError):
    """The embedded PostgreSQL cannot be started, joined or stopped."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


@contextmanager
def explained(folder: Path) -> Generator[None]:
    """Turn a failing file operation into an error that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in _NO_SPACE:
            problem = f"the disk that holds {folder} is full: free some space"
        elif error.errno in _NOT_WRITABLE:
            problem = f"{where} is not writable: set HORSIES_EMBEDDED_DIR to a folder that is"
        elif error.errno == errno.ENOEXEC:
            problem = f"{where} does not run on this platform: set HORSIES_DATABASE_URL to a PostgreSQL of your own"
        else:
            problem = f"file operation failed below {folder}"
        raise EmbeddedPostgresError(f"embedded PostgreSQL: {problem} ({error})") from error
