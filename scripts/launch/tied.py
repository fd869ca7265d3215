"""Run a command that gets a signal when whoever started it ends: `python tied.py PARENT_PID SIGNAL COMMAND...`.

This runs in the new process, before the command takes its place. Python's `preexec_fn` could do the same, but only
after a fork(), in which gRPC's handlers now and then abort the new process ("Epoll1Poller encountered epoll_wait
error"). A process without it is made by vfork(), which calls no handlers.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Prepare the process, and become the command."""
    parent, number, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):
        sys.exit("whoever started this process has ended")
    # Each connection is an open file. Most shells allow 1,024, though more are possible. A Triton that needs one more
    # writes megabytes of warnings a second.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # If a script started the launcher in the background, SIGINT is ignored, and the server would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
