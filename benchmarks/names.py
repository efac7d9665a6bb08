"""From the SQL on the wire back to the name that horsies has for it."""

import re
from functools import cache

from horsies.db import broker
from horsies.maintenance import rescue
from horsies.tasks import claim, enqueue, finish, handle
from horsies.worker import batch, heartbeat

_PLACEHOLDER = re.compile(r"%\(\w+\)s|\$\d+")


def name_of(sql: str) -> str:
    """The statement's name in its `.sql` file; of others, the first word."""
    return _names().get(_shape(sql)) or sql.split(maxsplit=1)[0].lower()


@cache
def _names() -> dict[str, str]:
    statements = [
        statement
        for capacity in (broker, claim, enqueue, finish, enqueue, claim, rescue, finish, handle, heartbeat, batch)
        for statement in capacity.SQL.values()
    ]
    return {_shape(statement.for_schema("horsies").decode()): statement.name for statement in statements}


def _shape(sql: str) -> str:
    """Placeholders look different before and after the client library."""
    return _PLACEHOLDER.sub("$", sql).replace("%%", "%")
