"""What a worker or a scheduler answers over HTTP: `/healthz` and `/readyz` for those who restart it or send it work, `/metrics` for Prometheus."""

import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

from horsies.app import Horsies
from horsies.model.errors import HorsiesError
from horsies.worker.checkup import Checkup
from horsies.worker.http import Answer, serving

log = logging.getLogger("horsies.worker")


def endpoints(app: Horsies, checkup: Checkup, *, host: str, port: int | None) -> AbstractContextManager[None]:
    """They answer within it, if they are wanted. Raises if the port cannot be had."""
    if port is None:
        return nullcontext()
    listener = _bound(host, port)
    log.info("HTTP: /metrics, /healthz and /readyz on %s port %d%s", host, port, _reach(host))
    return serving(
        listener,
        {
            "/metrics": _metrics(app, checkup),
            "/healthz": lambda: _healthz(checkup),
            "/readyz": lambda: _readyz(checkup),
        },
    )


def _reach(host: str) -> str:
    """What a default that is safe leaves to be done where probes and scrapers come from other machines."""
    return (
        " (this machine only; --metrics-host 0.0.0.0 for others)" if host in {"127.0.0.1", "::1", "localhost"} else ""
    )


def _bound(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)  # not of a resolver
        raise HorsiesError(
            f"cannot answer on {host} port {port}: {why}; choose another --metrics-port or --metrics-host"
        ) from error


def _healthz(checkup: Checkup) -> Answer:
    if checkup.is_alive():
        return _json("200 OK", {"status": "alive"})
    return _json("503 Service Unavailable", {"status": "the event loop does not turn"})


def _readyz(checkup: Checkup) -> Answer:
    reasons = checkup.unready()
    if reasons:
        return _json("503 Service Unavailable", {"status": "not ready", "reasons": reasons})
    return _json("200 OK", {"status": "ready", "reasons": []})


def _metrics(app: Horsies, checkup: Checkup) -> Callable[[], Answer]:
    try:
        # By name: what hangs on a worker stands above it, and comes with an extra.
        expose = import_module("horsies.contrib.prometheus").exposition(app, checkup.vitals)
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        words = b"/metrics needs prometheus-client; run: pip install 'horsies[prometheus]'\n"
        return lambda: Answer("501 Not Implemented", words)
    return lambda: Answer("200 OK", *expose())


def _json(status: str, value: object) -> Answer:
    return Answer(status, json.dumps(value).encode() + b"\n", "application/json")
