"""`python -m horsies.child child|template FD`: started by a worker, never by hand."""

import sys
from importlib import import_module

if __name__ == "__main__":
    kind, fd = sys.argv[1:]
    import_module("horsies.child.template" if kind == "template" else "horsies.child.main").main(int(fd))
