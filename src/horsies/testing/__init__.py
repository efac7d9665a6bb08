"""Test code that sends tasks: a sandbox with a temporary database, and what to do in it. pytest loads it as a plug-in.

The names are imported when they are first used: every pytest run that finds horsies installed loads this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horsies.testing.assertions import Enqueued, assert_enqueued, enqueued, refute_enqueued
    from horsies.testing.database_clock import Clock, clock
    from horsies.testing.drainer import EndlessDrainError, Ran, Retries, drain, drain_async
    from horsies.testing.inline import run_inline
    from horsies.testing.sandbox import Sandbox, SandboxError, clear, open_sandbox

__all__ = [
    "Clock",
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
    "open_sandbox",
    "refute_enqueued",
    "run_inline",
]

_MODULES = ("assertions", "database_clock", "drainer", "inline", "sandbox")


if not TYPE_CHECKING:  # otherwise the type checker would accept a misspelt name

    def __getattr__(name: str) -> object:
        if name in __all__:
            for module in _MODULES:
                names = vars(import_module(f"horsies.testing.{module}"))
                if name in names:
                    return names[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
