"""`python -m horsies.executor child|forkserver|fork FD`: started by a worker, not by users."""

import gc
import sys
from importlib import import_module

ENTRY_POINTS = {
    "child": ("horsies.executor.main", "main"),
    "forkserver": ("horsies.executor.fork_server", "serve"),
    "fork": ("horsies.executor.fork_server", "serve_app"),
}

if __name__ == "__main__":
    kind, fd = sys.argv[1:]
    module, function = ENTRY_POINTS[kind]
    gc.disable()  # nothing that is loaded now is garbage, and collecting it takes a tenth of the time of the start
    run = getattr(import_module(module), function)
    gc.freeze()  # or the first collection after this would traverse all of it
    gc.enable()
    run(int(fd))
