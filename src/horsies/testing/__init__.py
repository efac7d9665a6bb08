"""For tests of code that sends tasks: a throw-away database, and what to do with it. As a pytest plug-in it loads itself.

The names are looked up when they are first used: this door is passed by every pytest run that finds horsies installed.
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


if not TYPE_CHECKING:  # or a misspelt name would be one that the type checker accepts

    def __getattr__(name: str) -> object:
        if name in __all__:
            for module in _MODULES:
                found = vars(import_module(f"horsies.testing.{module}"))
                if name in found:
                    return found[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
