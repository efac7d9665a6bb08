"""`python -m horsies.executor child|fork-server FD`: started by a worker, not by users."""

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    kind, fd = sys.argv[1:]
    gc.disable()  # nothing that is loaded now is garbage, and collecting it takes a tenth of the time of the start
    module = import_module("horsies.executor.fork_server" if kind == "fork-server" else "horsies.executor.main")
    gc.freeze()  # or the first collection after this would traverse all of it
    gc.enable()
    module.main(int(fd))
