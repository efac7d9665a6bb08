"""`python -m horsies.executor child|fork-server FD`: started by a worker, never by hand."""

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    kind, fd = sys.argv[1:]
    gc.disable()  # nothing that is loaded now is garbage, and looking for some takes a tenth of the time
    room = import_module("horsies.executor.fork_server" if kind == "fork-server" else "horsies.executor.main")
    gc.freeze()  # or the first look after this would be at all of it
    gc.enable()
    room.main(int(fd))
