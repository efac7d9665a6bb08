"""A server for tests and measurements, in a temporary folder that goes away with it."""

import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from horsies.dev.server import Server


@contextmanager
def scratch_server(*, settings: Mapping[str, str] | None = None, tcp_port: int | None = None) -> Generator[Server]:
    """Start a server in a new temporary folder; at the end stop it and delete everything.

    The folder lies directly in /tmp: as root the server's user must be able to enter it, which a test runner's own
    temporary folders do not allow, and socket paths must be short.
    """
    folder = Path(tempfile.mkdtemp(prefix="horsies-pg-", dir="/tmp"))
    try:
        # One level below: the server makes its own folder with the mode that its user needs.
        folder.chmod(0o711)
        server = Server(folder / "s", settings=settings, tcp_port=tcp_port)
        try:
            server.start()
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
