"""Test code that sends tasks: a sandbox with a temporary database, and what to do in it. pytest loads it as a plug-in."""

from horsies.testing.assertions import Enqueued, assert_enqueued, enqueued, refute_enqueued
from horsies.testing.database_clock import Clock, clock
from horsies.testing.drainer import EndlessDrainError, Ran, Retries, drain, drain_async, run_inline
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
