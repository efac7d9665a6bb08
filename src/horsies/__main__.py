"""`python -m horsies` is `horsies`."""

from horsies.cli.__main__ import main

if __name__ == "__main__":
    main()
