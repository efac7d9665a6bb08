"""`python -m horsies.child FD`: started by a worker, never by hand."""

import sys

from horsies.child.main import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
