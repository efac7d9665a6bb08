"""The server of `horsies web`: uvicorn, without connections that cost nothing to those who open them.

uvicorn waits without a limit for the head of a request, and for a client to read what it has requested. As the number of connections is limited, a few clients
could take all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from horsies.web.security import Network, is_in, is_loopback_name, parse_networks

PATIENCE_S: Final = 30.0
CHECK_S: Final = 5.0
MAX_CONNECTIONS: Final = 1_000
MAX_CONNECTIONS_OF_ONE: Final = 200  # address, unless it is a proxy's


class LimitedProtocol(H11Protocol):
    """Closes connections whose client sends no request or does not read the answer, and those of an address that has too many."""

    proxies: ClassVar[Sequence[Network]] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._seen, self._since = self.cycle, self.loop.time()
        self._watch = self.loop.call_later(CHECK_S, self._check)
        if self.client and not is_loopback_name(address := self.client[0]) and not is_in(address, self.proxies):
            clients = [getattr(other, "client", None) for other in self.connections]
            if sum(client is not None and client[0] == address for client in clients) > MAX_CONNECTIONS_OF_ONE:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        has_request = not getattr(self.cycle, "response_complete", True)  # before the first one there is no cycle
        if self.cycle is not self._seen or (has_request and not self.transport.get_write_buffer_size()):
            self._seen, self._since = self.cycle, self.loop.time()
        elif self.loop.time() - self._since > PATIENCE_S:
            self.transport.abort()  # `close` would wait until the client has read all
            return
        self._watch = self.loop.call_later(CHECK_S, self._check)


def protocol_for(proxies: Iterable[str]) -> type[LimitedProtocol]:
    return type("Protocol", (LimitedProtocol,), {"proxies": parse_networks(proxies)})
