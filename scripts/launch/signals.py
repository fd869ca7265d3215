"""Signals that end a launcher."""

import signal


def end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, so that `kill` and a closed terminal stop servers cleanly, too.

    Under nohup SIGHUP stays ignored.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
