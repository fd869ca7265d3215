"""The processes of the other ranks, as rank 0 commands them."""

import contextlib
import socket
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

from torch._C._distributed_c10d import TCPStore

from inflight.errors import EngineDead
from inflight.model.parallel.machines.join import Machines
from inflight.model.parallel.rank_process import LocalRank, RankProcess, abandon
from inflight.model.parallel.ranks_folder import RanksFolder
from inflight.model.parallel.rendezvous import Rendezvous
from inflight.model.parallel.watch import FINDING_SECONDS, Watch

LOOPBACK = "127.0.0.1"

_rendezvous = count()


class Workers:
    """Starts the other ranks of this machine, waits for those of other machines, watches them, and passes commands on.

    If one of them ends or is stopped, all are killed. Then the collective for which rank 0 waits fails, and `answers`
    raises `EngineDead`.
    """

    def __init__(self, size: int, machines: Machines | None = None) -> None:
        """Without `machines`, all ranks are on this one.

        Raises:
            OSError: no process can be started.
            ValueError: this machine does not have the address of `machines`, or its port is taken.
            TimeoutError: not all machines have come.
        """
        self.size = size
        self.host = LOOPBACK if machines is None else machines.host
        """The address of this machine at which the other ranks reach it."""
        folder = RanksFolder()
        self.folder = folder.path
        """Only this user can read it. Where all ranks are on this machine, they find each other through files in it."""
        self._store: Any = None
        ranks: list[RankProcess] = []
        with contextlib.ExitStack() as undo:
            undo.callback(folder.remove)
            undo.callback(abandon, ranks)
            if machines is not None:
                ranks += machines.join()
                self._store = _hold_store(self.host)
            here = size if machines is None else machines.ranks_each
            for rank in range(1, here):
                ranks.insert(rank - 1, LocalRank(rank, size, self.host, self.folder))
            undo.pop_all()  # All have started: nothing is undone.
        self._number = b"\0"
        """That of the last command."""
        self._watch = Watch(ranks)
        self._watch.start()
        # Also ends them when nobody closes this object.
        self.close = weakref.finalize(self, _end, self._watch, folder)
        """Ends the processes, and waits for it."""

    @property
    def pids(self) -> list[int]:
        """The ids of the processes on this machine, in the order of the ranks."""
        return [rank.process.pid for rank in self._watch.ranks if isinstance(rank, LocalRank)]

    def new_rendezvous(self) -> Rendezvous:
        """Where the ranks find each other for the next model."""
        name = f"store-{next(_rendezvous)}"
        if self._store is None:
            return Rendezvous(name, folder=self.folder)
        return Rendezvous(name, address=(self.host, self._store.port))

    def be_patient(self, on_death: Callable[[EngineDead], None]) -> None:
        """A model is to be loaded: for minutes, a rank may show no sign of life.

        `on_death` is called on another thread when a rank has ended or was stopped.
        """
        self._watch.expect_loading(on_death)

    def serve(self, on_death: Callable[[EngineDead], None]) -> None:
        """From now on, a rank that shows no sign of life for 3 seconds counts as stopped.

        `on_death` is called on another thread when a rank has ended or was stopped.
        """
        self._watch.expect_steps(on_death)

    def kill(self, fault: str) -> None:
        """End them at once. `fault` says why."""
        self._watch.give_up(fault)

    def tell(self, command: bytes, argument: bytes) -> None:
        """Send a command to all.

        Raises:
            EngineDead: a rank has ended.
        """
        self._number = bytes([(self._number[0] + 1) % 256])
        message = command + self._number + argument
        for rank in self._watch.ranks:
            try:
                rank.connection.send_bytes(message)
            except OSError:
                raise self._death() from None

    def answers(self, seconds: float) -> list[bytes]:
        """Wait at most `seconds` for the answer of each to the last command.

        Answers to earlier commands are dropped: Ctrl-C may have ended the wait for them.

        Raises:
            EngineDead: a rank has ended, was stopped, or does not answer.
        """
        found = []
        for rank in self._watch.ranks:
            try:
                found.append(self._answer(rank, seconds))
            except (EOFError, OSError):
                raise self._death() from None
        return found

    def _answer(self, rank: RankProcess, seconds: float) -> bytes:
        number = b""
        while number != self._number:
            if not rank.connection.poll(seconds):
                self._watch.give_up(f"rank {rank.rank} does not answer for {seconds:g} s")
            message = rank.connection.recv_bytes()
            number = message[:1]
        return message[1:]

    def _death(self) -> EngineDead:
        self._watch.found.wait(FINDING_SECONDS)
        return EngineDead(self._watch.fault or "the other ranks have ended")


def _hold_store(host: str) -> Any:
    """A store of torch's that listens only at this address, and not at all of this machine's."""
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _end(watch: Watch, folder: RanksFolder) -> None:
    watch.stopping.set()
    for rank in watch.ranks:
        rank.connection.close()
    for rank in watch.ranks:
        rank.wait()
    folder.remove()
