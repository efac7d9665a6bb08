# pyright: basic
"""An ENGINE whose driver has the name of psycopg2, as that of a project with an old or patched Django has."""

from types import ModuleType

import psycopg
from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    Database = ModuleType("psycopg2")
    Database.__dict__.update({**vars(psycopg), "__name__": "psycopg2"})
