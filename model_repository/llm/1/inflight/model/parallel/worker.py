"""The process of a rank other than 0: it loads its part of the model and computes what rank 0 says.

Arguments: RANK SIZE CONNECTION BEATS HOST FOLDER. CONNECTION and BEATS are numbers of inherited file descriptors, HOST
is the address of this machine for the other ranks, and FOLDER is empty where rank 0 is on another machine. Between
steps it waits on the connection, for as long as it takes. It ends when rank 0 has closed the connection, or has ended.
"""

import logging
import os
import shutil
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import NoReturn

from inflight.lasting_imports import lasting_imports

BEAT, BEAT_SECONDS = b"+", 0.5


def _leave(folder: str) -> NoReturn:
    """End this process, and remove the folder of the ranks: rank 0 may have been killed."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    # Not the usual end: it would free each tensor and library by itself, and wait for a collective.
    os._exit(0)


def _beat(descriptor: int, folder: str) -> None:
    """Show rank 0 that this process is neither stopped nor dead. When rank 0 has ended, end, whatever is computed."""
    os.set_blocking(descriptor, False)
    while True:
        try:
            os.write(descriptor, BEAT)
        except BlockingIOError:
            pass  # Rank 0 is stopped; it may go on.
        except OSError:  # It has ended, or the link to its machine has.
            _leave(folder)
        time.sleep(BEAT_SECONDS)


def main() -> None:
    """Serve until rank 0 closes the connection."""
    # A service manager or a terminal may send its signals to every process. This one ends with rank 0.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    rank, size, connection, beats = map(int, sys.argv[1:5])
    host, folder = sys.argv[5:7]
    # Before torch is imported, which takes seconds.
    threading.Thread(target=_beat, args=(beats, folder), name="beats", daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format=f"rank {rank}: %(levelname)s %(message)s")

    with lasting_imports():
        import transformers

        from inflight.model.parallel.rank import Rank

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with Connection(connection) as to_rank_0:
        Rank(rank, size, host, to_rank_0).serve()
    _leave(folder)


if __name__ == "__main__":
    main()
