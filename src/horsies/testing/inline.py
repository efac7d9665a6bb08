"""Run in line: a send returns when its task has run.

The send is a real one, and so is the run: the row is committed and drained, by the same code as ever, before the verb returns. So
arguments and results are encoded and decoded, keys, queues and policies are honoured, and handles read what was stored. Only the
delays of retries are skipped. What a caller's own transaction holds back runs with the first verb after its COMMIT.
"""

from collections.abc import Generator
from contextlib import contextmanager

from horsies.app import Horsies
from horsies.testing.drains import Ran
from horsies.testing.sandbox import sandbox_of


@contextmanager
def run_inline(app: Horsies | None = None) -> Generator[list[Ran]]:
    """Within it, whatever is due runs as soon as it is sent, in this process. The list tells what has run, and grows."""
    from horsies.testing.inline_broker import InlineBroker  # noqa: PLC0415 - with it comes psycopg: not before a test needs it

    sandbox, ran = sandbox_of(app), list[Ran]()
    with InlineBroker(sandbox, ran) as broker, sandbox.app.using(broker):
        yield ran
