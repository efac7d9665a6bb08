"""`python -m horsies.cli.dev_part PID COMMAND ...`: a command as a part of `horsies dev` or `worker --reload`; it dies with who started it."""

import sys

from horsies.cli.main import main
from horsies.executor.os_process import die_with_parent
from horsies.logs import line_buffer_stdout

if __name__ == "__main__":
    parent, *words = sys.argv[1:]
    die_with_parent(int(parent))
    line_buffer_stdout()
    main(words, prog_name="horsies")
