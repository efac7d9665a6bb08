"""Access to PostgreSQL: the only folder that imports psycopg."""

import sys
from pathlib import PurePath

try:
    import psycopg as psycopg  # before all modules that use it, so that a missing libpq is explained
except ModuleNotFoundError:
    raise
except ImportError as error:
    _MESSAGE = (
        "psycopg finds no libpq, the client library of PostgreSQL: "
        'run `pip install "horsies[binary]"`, or install libpq (the package libpq5 of Debian and Ubuntu, libpq of others)'
    )
    # The command, also as `python -m horsies`. Programs get the exception.
    if PurePath(sys.argv[0]).name == "horsies" or sys.orig_argv[1:3] == ["-m", "horsies"]:
        raise SystemExit(f"Error: {_MESSAGE}") from None
    raise ImportError(_MESSAGE) from error
