"""The guardian's process: it ends Triton's server when the process of a model has died, and the other way round.

The out-of-memory killer or a fault in a kernel can kill that process. Triton 24.10 does not notice: it stays ready,
clients wait for tokens that never come, and every new request is refused. When the server ends, all connections are
closed, and whatever started the server can start it again.

A model that has not ended in order with its server is killed at once. Triton's part of its process would end it later,
or never, and would do it while the engine computes: torch then fails in every running request, with errors that mean
nothing. Until it ends, it has the memory that the next server needs.

Standard library only, so that the process is small and depends on nothing that may be broken.

Standard input brings a `BEAT` each second from the model's process, and `END` when the model ends in order. An end of
the input without `END` means that the model's process has died. Before the first `BEAT` the model is being loaded: then
it may be silent, and Triton itself notices its end. Standard output takes `READY` when the watch begins.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time

from serving.process import Process

BEAT, END, READY = b"+", b".", b"!"

_UUID_CHARACTERS = 36
_TICK_SECONDS = 1.0
# In which SIGKILL ends the server, if it can.
_KILL_SECONDS = 0.5
# In which its limit of processor time ends the first process of a container. The kernel counts at least one second.
_LIMIT_SECONDS = 30.0


class Watch:
    """Watches the process of one model."""

    def __init__(self, name: str, model: Process, server: Process, patience_seconds: float) -> None:
        """`patience_seconds`: how long the model may be silent."""
        self._name, self._model, self._server = name, model, server
        self._patience = patience_seconds
        # Both have mapped the region through which they talk.
        self._regions = model.regions() & server.regions()
        self._server_end = server.end_descriptor()

    def run(self) -> None:
        """Return when the model has ended in order, or when one of both has died and the other was ended."""
        how = self._wait()
        if how is None:
            return
        if self._server.is_alive():
            _log(f"the process of the model {self._name!r} {how}; the server, process {self._server.pid}, is ended")
        elif self._model.is_alive():
            _log_orphan(self._name, self._model)
        # Before the server ends: everything else in a container ends with its first process.
        for region in self._regions | self._of_other_models():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(region)
        self._model.send(signal.SIGKILL)
        end(self._server)

    def _of_other_models(self) -> set[str]:
        """The server's regions for its models. They have names that differ only in the UUID at the end."""
        kinds = {region[:-_UUID_CHARACTERS] for region in self._regions}
        return {region for region in self._server.regions() if region[:-_UUID_CHARACTERS] in kinds}

    def _wait(self) -> str | None:
        """Wait for the model's end. Return what happened to it, or None if it ended in order."""
        silent, is_loaded = 0.0, False
        ends = [] if self._server_end is None else [self._server_end]
        while silent < self._patience:
            server_lives = self._server.is_alive()
            # Counted in short waits instead of read from a clock: if the whole machine or container was suspended, the
            # model has not been silent. Without a server, only look for a last message.
            readable, _, _ = select.select([sys.stdin, *ends], [], [], _TICK_SECONDS if server_lives else 0)
            message = os.read(sys.stdin.fileno(), 4096) if sys.stdin in readable else None
            if message is not None and END in message:
                return None
            is_loaded = is_loaded or bool(message)
            # A process that the model has started may hold the other end of the pipe.
            if message == b"" or not self._model.is_alive():
                return "has died" if is_loaded or not self._server.is_alive() else None
            if not server_lives:
                return "has outlived its server"
            silent = silent + _TICK_SECONDS if is_loaded and not readable else 0.0
        return f"stands still: it gave no sign of life for {self._patience:g} s"


def server_of(model: Process, parent: int) -> Process | None:
    """Return the model's parent if it is Triton's server, or None if the server has died.

    An orphan gets another parent: the first process of the machine or container, or a service manager. None of these
    may ever be ended. They share no region with the model.

    Raises:
        OSError: the system does not show which regions they have mapped.
    """
    regions = model.regions()
    if not regions:
        raise OSError(f"/proc/{model.pid}/maps does not show the memory that the model shares with its server")
    try:
        server = Process(parent)
    except ProcessLookupError:
        return None
    # Of another user's process, such as the first one of the machine, the system may not show the regions.
    return server if server.user == model.user and regions & server.regions() else None


def end(server: Process) -> None:
    """End the server at once. An orderly end would wait for the model's requests, until Triton's exit timeout is over.

    In a container the server is often the first process. The kernel protects that process from SIGKILL by the others,
    and a second SIGTERM does not hurry Triton. But a process that exceeds its limit of processor time is killed,
    whichever it is. The kernel looks at the limit only while the process computes, so connections keep it busy.
    """
    server.send(signal.SIGKILL)
    if server.ends_within(_KILL_SECONDS):
        return
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(server.pid, resource.RLIMIT_CPU, (1, 1))
    addresses = server.listening()
    deadline = time.monotonic() + _LIMIT_SECONDS
    while addresses and server.is_alive() and time.monotonic() < deadline:
        for address in addresses:
            with contextlib.suppress(OSError):
                socket.create_connection(address, timeout=0.1).close()
    if server.is_alive():
        _log(f"the server, process {server.pid}, cannot be killed; it gets SIGTERM and ends at its exit timeout")
        server.send(signal.SIGTERM)


def _log_orphan(name: str, model: Process) -> None:
    _log(f"the server of the model {name!r} has died; the model, process {model.pid}, is ended")


def _log(message: str) -> None:
    # Whoever reads the server's log may have gone.
    with contextlib.suppress(OSError):
        print(f"E {time.strftime('%Y-%m-%d %H:%M:%S')} guardian] {message}", file=sys.stderr, flush=True)


def main() -> None:
    """Watch the model that the arguments name, and its server: NAME MODEL_PID PARENT_PID PATIENCE_SECONDS."""
    # A service manager may send its signals to every process of the service. The guardian's end is that of its input.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    name, pid, parent, patience = sys.argv[1:]
    model = Process(int(pid))
    server = server_of(model, int(parent))
    if server is None:
        _log_orphan(name, model)
        model.send(signal.SIGKILL)
        return
    watch = Watch(name, model, server, float(patience))
    os.write(sys.stdout.fileno(), READY)
    watch.run()


if __name__ == "__main__":
    main()
