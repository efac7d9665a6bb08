"""What tests of a Django project need: everything in `horsies.testing`, on Django's test database.

It works with `manage.py test` and pytest-django, without fixtures: import from here instead of `horsies.testing`.
"""

from horsies.contrib.django.test_database import clear, sandbox
from horsies.testing import (
    EndlessDrainError,
    Enqueued,
    Ran,
    Retries,
    Sandbox,
    SandboxError,
    assert_enqueued,
    clock,
    drain,
    drain_async,
    enqueued,
    refute_enqueued,
    run_inline,
)
from horsies.testing.sandbox import finders

__all__ = [
    "EndlessDrainError",
    "Enqueued",
    "Ran",
    "Retries",
    "Sandbox",
    "SandboxError",
    "assert_enqueued",
    "clear",
    "clock",
    "drain",
    "drain_async",
    "enqueued",
    "refute_enqueued",
    "run_inline",
    "sandbox",
]

if sandbox not in finders:
    finders.append(sandbox)
