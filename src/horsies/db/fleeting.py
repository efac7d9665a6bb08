"""A broker for event loops that come and go, as those of tests do, and that nobody tells when they go."""

from dataclasses import replace

from psycopg_pool import AsyncConnectionPool, AsyncNullConnectionPool

from horsies.db import connect
from horsies.db.broker import PostgresBroker


class FleetingBroker(PostgresBroker):
    """An asyncio connection lives as long as one verb: nothing stays open on a loop that ends, and no connection in the making can
    keep it from ending.
    """

    def _new_async_pool(self) -> AsyncConnectionPool:
        fleeting = replace(self.config, pool_min_size=0)
        return connect.make_async_pool(fleeting, self._preparing, AsyncNullConnectionPool)
