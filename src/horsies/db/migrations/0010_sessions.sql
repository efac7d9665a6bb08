-- compatible_since: 1
-- As of its last heartbeat, two sessions of the worker hold its advisory lock. When nobody holds it any more, both are gone, and most likely the
-- process with them. A library that does not know of it leaves it false, and its workers are judged by their heartbeat alone.
alter table {schema}.workers add column holds_lock boolean not null default false;
