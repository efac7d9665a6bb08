"""Lists which promises of the specification have tests; given a claims file, also which have none."""

import contextlib
import io
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest


class Collector:
    """A pytest plug-in that notes which tests carry which promise."""

    def __init__(self) -> None:
        self.tests: defaultdict[str, list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("promise"):
                for promise in mark.args:
                    self.tests[str(promise)].append(item.nodeid)


def collect() -> dict[str, list[str]]:
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "--quiet", "-p", "no:randomly"], plugins=[collector])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        sys.exit(said.getvalue() + "the tests cannot be collected")
    return collector.tests


def natural(promise: str) -> tuple[str, int]:
    """A2 comes before A10."""
    return promise.rstrip("0123456789"), int(re.sub(r"\D", "", promise) or 0)


def main(spec: str | None = None) -> None:
    tests = collect()
    for promise in sorted(tests, key=natural):
        print(f"{promise}\t" + "\n\t".join(tests[promise]))
    if spec is not None:
        promised = re.findall(r"^- ([A-Z]\d+) ", Path(spec).read_text("utf-8"), re.MULTILINE)
        missing = [promise for promise in promised if promise not in tests]
        print(f"no test yet ({len(missing)} of {len(promised)}): {' '.join(missing)}")
        unknown = sorted(set(tests) - set(promised), key=natural)
        if unknown:
            sys.exit(f"not in {spec}: {' '.join(unknown)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
