"""A broker for event loops that come and go, as those of tests do, and that nobody tells when they go."""

from dataclasses import replace

from psycopg_pool import AsyncNullConnectionPool

from horsies.db.broker import PostgresBroker
from horsies.db.pools import Pools


class FleetingBroker(PostgresBroker):
    """An asyncio connection lives as long as one verb: nothing stays open on a loop that ends, and no connection in the making can
    keep it from ending.
    """

    def _new_pools(self) -> Pools:
        return Pools(replace(self.config, pool_min_size=0), self._preparing, AsyncNullConnectionPool)
