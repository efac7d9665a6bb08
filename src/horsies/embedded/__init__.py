"""The embedded PostgreSQL: a server from a wheel, for development, the quick start and tests.

Its errors always say what to change.
"""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from horsies.model.errors import BrokerError


class EmbeddedPostgresError(BrokerError):
    """The embedded PostgreSQL cannot be started, joined or stopped."""


@contextmanager
def explain_os_errors(folder: Path) -> Generator[None]:
    """Raise a failing file operation as an error that names the folder and what to change."""
    try:
        yield
    except OSError as error:
        path = error.filename or folder
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                problem = f"the disk that holds {folder} is full: free some space"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                problem = f"{path} is not writable: set HORSIES_EMBEDDED_DIR to a folder that is"
            case errno.ENOEXEC:
                problem = f"{path} does not run on this platform: set HORSIES_DATABASE_URL to a PostgreSQL of your own"
            case _:
                problem = f"file operation failed below {folder}"
        raise EmbeddedPostgresError(f"embedded PostgreSQL: {problem} ({error})") from error
