"""The door to the command line. Until all of it is loaded, Ctrl-C ends this process as it ends any other: nothing has been begun that had to be
brought to an end, and a traceback of imports tells nobody anything.
"""

import signal


def main() -> None:
    is_heard = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # it may be ignored: nohup, or `&` in a script
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from horsies.cli.main import main as command  # noqa: PLC0415 - this is what takes a while

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()
