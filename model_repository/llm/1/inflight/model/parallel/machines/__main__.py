"""Lends this machine to a model whose rank 0 runs on another one.

Run it on each other machine, with the environment variable INFLIGHT_RANKS_KEY as on the first:

    python -m inflight.model.parallel.machines HOST:PORT

HOST:PORT are the settings `master_addr` and `master_port` of the model. It waits for rank 0, starts the ranks that rank
0 asks for, and begins again when they have ended. The log is on the error stream.
"""

import argparse
import contextlib
import json
import logging
import signal
import subprocess
import sys
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

from inflight.model.parallel.machines.key import ranks_key
from inflight.model.parallel.machines.sockets import connect
from inflight.model.parallel.machines.versions import versions
from inflight.model.parallel.rank_process import start

logger = logging.getLogger("machines")

_AGAIN_SECONDS = 1.0


class Refused(Exception):
    """Rank 0 runs something else, or has another key."""


def main() -> None:
    """Lend this machine until a signal ends the process, or rank 0 refuses it."""
    parser = argparse.ArgumentParser(
        prog="python -m inflight.model.parallel.machines",
        description="Lend this machine to a model whose rank 0 runs on another one.",
    )
    parser.add_argument("address", metavar="HOST:PORT", help="master_addr and master_port of the model")
    host, _, port = parser.parse_args().address.rpartition(":")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if not host or not port.isdecimal():
        parser.error("the address must be HOST:PORT")
    # An exit, so that the ranks do not stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        key = ranks_key()
        logger.info("waiting for rank 0 at %s:%s", host, port)
        while True:
            with contextlib.ExitStack() as processes:
                _serve(processes, host, int(port), key)
            time.sleep(_AGAIN_SECONDS)
    except (Refused, ValueError) as error:
        sys.exit(f"error: {error}")


def _serve(processes: contextlib.ExitStack, host: str, port: int, key: bytes) -> None:
    """Join, and wait until the ranks have ended. Return at once where rank 0 does not wait for machines."""
    try:
        ranks = _join(processes, host, port, key)
    except AuthenticationError as error:
        raise Refused(f"{host}:{port} has another INFLIGHT_RANKS_KEY ({error})") from None
    except (OSError, EOFError) as error:
        logger.debug("%s", error)
        return
    logger.info("running rank %s", ", ".join(map(str, ranks)))
    for rank, process in ranks.items():
        status = process.wait()
        logger.info("rank %d has ended with the status %d", rank, status)
    logger.info("waiting for rank 0 at %s:%s", host, port)


def _join(processes: contextlib.ExitStack, host: str, port: int, key: bytes) -> dict[int, "subprocess.Popen[bytes]"]:
    """Start the ranks that rank 0 asks for.

    Raises:
        OSError, EOFError: rank 0 is not there, or has gone.
        AuthenticationError: it has another key.
        Refused: it runs something else.
    """
    control, own_address = connect(host, port, key, json.dumps(versions()).encode())
    with control, contextlib.ExitStack() as opened:
        answer = json.loads(control.recv_bytes())
        if "refused" in answer:
            raise Refused(answer["refused"])

        def open_one() -> Connection:
            connection, _ = connect(host, port, key, answer["token"].encode())
            opened.callback(connection.close)
            return connection

        pairs = {rank: (open_one(), open_one()) for rank in answer["ranks"]}
        found = {}
        for rank, (commands, beats) in pairs.items():
            found[rank] = start(rank, answer["size"], commands.fileno(), beats.fileno(), own_address, None)
            processes.callback(found[rank].kill)
        return found


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
