"""Start the command line.

Importing it takes a while. Until that is done, Ctrl-C ends the process as it ends any other program: no cleanup is needed yet, and a traceback
of imports would not help the user.
"""

import signal


def main() -> None:
    # SIGINT may be ignored: nohup, or `&` in a script. Leave it ignored then.
    handles_sigint = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_sigint:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from horsies.cli.main import main as command  # noqa: PLC0415 - the slow part

    if handles_sigint:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
