"""Hosts: network namespaces, each with an address and a virtual cable to the machine with the database.

A cable is a pair of virtual interfaces. Taking our end down has the effect of a pulled plug: packets are dropped on both sides, and no error is reported.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.chaos.scratch import scratch_folder
from horsies.embedded.server import EmbeddedServer

NETWORK = "198.18"
"""Set aside for benchmarks (RFC 2544): it reaches no real host."""


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    cable: str
    server_address: str
    address: str

    @property
    def enter(self) -> tuple[str, ...]:
        """The prefix of a command that is to run there."""
        return ("ip", "netns", "exec", self.name)

    def make(self) -> None:
        inside = f"{self.cable}i"
        _ip("netns", "add", self.name)
        _ip("link", "add", self.cable, "type", "veth", "peer", "name", inside, "netns", self.name)
        _ip("addr", "add", f"{self.server_address}/30", "dev", self.cable)
        _ip("link", "set", self.cable, "up")
        for command in (["addr", "add", f"{self.address}/30", "dev", inside], ["link", "set", inside, "up"]):
            _ip("-n", self.name, *command)
        _ip("-n", self.name, "link", "set", "lo", "up")

    def down(self) -> None:
        _ip("link", "set", self.cable, "down")

    def up(self) -> None:
        _ip("link", "set", self.cable, "up")

    def remove(self) -> None:
        """Remove the host and its cable."""
        for words in (["link", "del", self.cable], ["netns", "del", self.name]):
            with suppress(subprocess.CalledProcessError):
                _ip(*words)


@dataclass(frozen=True, slots=True)
class Hosts:
    server: EmbeddedServer
    all: list[Host]

    def url(self, host: Host) -> str:
        return self.server.url().replace("127.0.0.1", host.server_address)


class ListeningServer(EmbeddedServer):
    """A server that the hosts can reach, too."""

    def __init__(self, folder: Path, settings: dict[str, str], port: int, hosts: list[Host]) -> None:
        super().__init__(folder, settings=settings, tcp_port=port)
        self._hosts = hosts

    def _options(self) -> str:
        addresses = ",".join(["127.0.0.1", *(host.server_address for host in self._hosts)])
        return f"{super()._options()} -c listen_addresses={addresses}"

    def admit_hosts(self) -> None:
        with (self.folder / "data" / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.writelines(f"host all all {host.address}/32 scram-sha-256\n" for host in self._hosts)
        with psycopg.connect(self.socket_url(), autocommit=True) as sql:
            sql.execute("select pg_reload_conf()")


def why_unavailable() -> str | None:
    """Return why this system cannot have hosts, or None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the `ip` command (iproute2) is missing"
    host = _host(secrets.randbelow(16_000))
    try:
        host.make()
    except subprocess.CalledProcessError as error:
        return f"this system does not support network namespaces: {error.stderr.strip()}"
    finally:
        host.remove()
    return None


@contextmanager
def scratch_hosts(count: int, settings: dict[str, str]) -> Generator[Hosts]:
    """Create the hosts, and a server that they can reach."""
    first = secrets.randbelow(16_000 - count)
    hosts = [_host(first + i) for i in range(count)]
    with scratch_folder() as folder:
        server = ListeningServer(folder / "s", settings, 20_000 + secrets.randbelow(10_000), hosts)
        try:
            for host in hosts:
                host.make()
            server.start()
            server.admit_hosts()
            yield Hosts(server, hosts)
        finally:
            server.stop("immediate")
            for host in hosts:
                host.remove()


def _host(number: int) -> Host:
    block = number * 4
    base = f"{NETWORK}.{block >> 8}"
    return Host(f"chaos{number}", f"ch{number}", f"{base}.{(block & 255) + 1}", f"{base}.{(block & 255) + 2}")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)  # noqa: S607 - found on the PATH
