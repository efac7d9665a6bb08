# pyright: basic
"""Run code in the project: `python -m evaluate CODE`."""

import sys

import django

if __name__ == "__main__":
    django.setup()
    exec("import json\n" + sys.argv[1], {"__name__": "evaluated"})  # noqa: S102 - the code is that of a test
