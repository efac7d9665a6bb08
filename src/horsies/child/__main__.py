"""`python -m horsies.child child|template FD`: started by a worker, never by hand."""

import sys

from horsies.child import main, template

if __name__ == "__main__":
    kind, fd = sys.argv[1:]
    (template if kind == "template" else main).main(int(fd))
