"""A model over several machines: they come, compute, and go, and nobody else can come in between."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from inflight import Engine, EngineConfig, EngineDead
from inflight.model.parallel import divided_model
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.machines import join, sockets
from inflight.model.parallel.machines.join import Machines
from inflight.model.parallel.machines.sockets import cut
from inflight.model.parallel.rank_process import abandon
from inflight.model.parallel.workers import LOOPBACK, Workers
from tests.engine.models import Tiny, drain, greedy, make_prompt, tokens
from tests.eventually import eventually

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]
SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "block_size": 8, "kv_cache_tokens": 1024}
KEY = "a key of the tests of machines"
SECONDS = 60.0


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_RANKS_KEY", KEY)


@pytest.fixture
def port() -> int:
    with socket.create_server((LOOPBACK, 0)) as found:
        return int(found.getsockname()[1])


class Lent:
    """A process that lends a machine, and what it writes."""

    def __init__(self, address: str, *, key: str = KEY, prefix: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "inflight.model.parallel.machines", address],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "INFLIGHT_RANKS_KEY": key, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(self._process.stderr)

    @property
    def ranks(self) -> list[psutil.Process]:
        """The processes of its ranks."""
        return [each for each in psutil.Process(self._process.pid).children(recursive=True) if is_rank(each)]

    def text_at_end(self, status: int) -> str:
        """Wait for its end."""
        assert self._process.wait(SECONDS) == status
        self._reader.join(SECONDS)
        return "".join(self.lines)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self._process.stderr is not None
        self._process.stderr.close()


def is_rank(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "inflight.model.parallel.worker" in process.cmdline()
    return False


@pytest.fixture
def lend() -> Iterator[Callable[..., Lent]]:
    """Starts processes that lend machines."""
    started: list[Lent] = []

    def start(address: str, **options: Any) -> Lent:
        started.append(Lent(address, **options))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


@pytest.fixture
def other_host() -> Iterator[Callable[[str], None]]:
    """A network namespace `inflight-other` with the address 10.213.7.2. This host is 10.213.7.1 there.

    Returns a function that sets the link `up` or `down`.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a second host needs root and iproute2")
    run("ip netns add inflight-other")
    try:
        run("ip link add inflight0 type veth peer name eth0 netns inflight-other")
        run("ip addr add 10.213.7.1/24 dev inflight0")
        run("ip link set inflight0 up")
        for command in ("addr add 10.213.7.2/24 dev eth0", "link set eth0 up", "link set lo up"):
            run(f"ip -n inflight-other {command}")
        yield lambda state: run(f"ip link set inflight0 {state}")
    finally:
        run("ip netns del inflight-other")


def test_two_hosts_share_a_model_and_a_lost_link_ends_it_at_once(
    tiny: Tiny, port: int, lend: Callable[..., Lent], other_host: Callable[[str], None]
) -> None:
    lent = lend(f"10.213.7.1:{port}", prefix=["ip", "netns", "exec", "inflight-other"])
    two = {"tensor_parallel_size": 2, "nnodes": 2, "master_addr": "10.213.7.1", "master_port": port}
    config = EngineConfig(model=str(tiny.folder), **two, **SETTINGS)
    expected = tokens(tiny.engine().generate(PROMPTS, greedy(20)))

    engine = Engine(config)
    assert tokens(engine.generate(PROMPTS, greedy(20))) == expected
    (rank,) = lent.ranks
    there = subprocess.run(["ip", "netns", "pids", "inflight-other"], capture_output=True, text=True, check=True).stdout
    assert str(rank.pid) in there.split()
    engine.submit(PROMPTS[0], greedy(200, ignore_eos=True))
    engine.core.step()
    other_host("down")
    began = time.monotonic()
    with pytest.raises(EngineDead, match="rank 1"):
        drain(engine)
    print(f"{time.monotonic() - began:.1f} s after the link was lost")
    # The other host learns it by itself.
    rank.wait(SECONDS)
    engine.close()

    other_host("up")
    engine = Engine(config)
    assert tokens(engine.generate(PROMPTS, greedy(20))) == expected
    (rank,) = lent.ranks
    rank.send_signal(signal.SIGKILL)
    engine.submit(PROMPTS[0], greedy(200, ignore_eos=True))
    with pytest.raises(EngineDead, match=r"rank 1 on 10\.213\.7\.2 has ended, or its link"):
        drain(engine)
    engine.close()


def test_machines_that_come_at_once_do_not_disturb_each_other(port: int, lend: Callable[..., Lent]) -> None:
    lent = [lend(f"{LOOPBACK}:{port}") for _ in range(3)]
    workers = Workers(8, Machines(LOOPBACK, port, count=4, ranks_each=2, key=KEY.encode()))
    assert len(workers.pids) == 1
    # A machine starts its ranks once it has their connections.
    assert eventually(lambda: [len(each.ranks) for each in lent] == [2, 2, 2], SECONDS)
    ranks = [rank for each in lent for rank in each.ranks]
    workers.close()
    assert psutil.wait_procs(ranks, SECONDS)[1] == []


def test_who_has_another_key_or_other_code_or_says_nothing_does_not_come_in(
    port: int, lend: Callable[..., Lent], monkeypatch: pytest.MonkeyPatch
) -> None:
    hellos = []

    def difference(hello: dict[str, str]) -> str:
        hellos.append(hello)
        return "torch is '2.0' there and '2.13.0' at rank 0" if len(hellos) == 1 else real(hello)

    real = join.difference
    monkeypatch.setattr(join, "difference", difference)
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.extend(Machines(LOOPBACK, port, count=2, ranks_each=1, key=KEY.encode()).join())
    )
    thread.start()
    silent = connect_when_there(port)
    stranger = lend(f"{LOOPBACK}:{port}", key="another key of 22 bytes")
    assert f"error: {LOOPBACK}:{port} has another INFLIGHT_RANKS_KEY" in stranger.text_at_end(1)
    older = lend(f"{LOOPBACK}:{port}")
    assert "error: torch is '2.0' there and '2.13.0' at rank 0" in older.text_at_end(1)
    lend(f"{LOOPBACK}:{port}")
    thread.join(SECONDS)
    (rank,) = found
    assert rank.rank == 1
    assert set(hellos[1]) == {"Python", "torch", "transformers", "Inflight"}
    abandon(found)
    silent.close()


def connect_when_there(port: int) -> socket.socket:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection((LOOPBACK, port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_only_the_connections_to_a_machine_are_cut_and_no_file_stays_open() -> None:
    with socket.create_server((LOOPBACK, 0)) as here, socket.create_server(("127.0.0.9", 0)) as there:
        kept, lost = (socket.create_connection(each.getsockname(), SECONDS) for each in (here, there))
        with kept, lost:
            before = os.listdir("/proc/self/fd")
            cut("127.0.0.9")
            assert len(os.listdir("/proc/self/fd")) == len(before)
            assert lost.recv(1) == b""
            accepted, _ = here.accept()
            with accepted:
                kept.sendall(b"x")
                assert accepted.recv(1) == b"x"


def test_machines_that_do_not_come_are_an_error(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_JOINING_SECONDS", 0.1)
    machines = Machines(LOOPBACK, port, count=3, ranks_each=1, key=KEY.encode())
    says = rf"nnodes is 3, but 2 machine\(s\) did not come to {LOOPBACK}:{port} within 0.1 s"
    with pytest.raises(TimeoutError, match=says):
        Workers(3, machines)


def test_an_address_that_this_machine_does_not_have_is_named(port: int) -> None:
    key = KEY.encode()
    with pytest.raises(ValueError, match=r"master_addr is 'nowhere\.invalid'"):
        Machines("nowhere.invalid", port, count=2, ranks_each=1, key=key)
    with pytest.raises(ValueError, match=f"master_addr is '192.0.2.1' and master_port {port}: .*Cannot assign"):
        Workers(2, Machines("192.0.2.1", port, count=2, ranks_each=1, key=key))


def test_a_key_is_needed(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, lend: Callable[..., Lent]) -> None:
    monkeypatch.setenv("INFLIGHT_RANKS_KEY", "short")
    says = "the environment variable INFLIGHT_RANKS_KEY has 5 bytes; it must have at least 16"
    with pytest.raises(ValueError, match=says):
        Engine(EngineConfig(model=str(tiny.folder), tensor_parallel_size=2, nnodes=2, **SETTINGS))
    assert f"error: {says}" in lend(f"{LOOPBACK}:1", key="short").text_at_end(1)


def test_a_machine_with_another_checkpoint_is_refused(
    tiny: Tiny, one_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(divided_model, "checkpoint_digest", lambda _: "another")
    with pytest.raises(RuntimeError, match=r"rank 1: .* whose files are not those of rank 0"):
        DividedModel(EngineConfig(model=str(tiny.folder), tensor_parallel_size=2, **SETTINGS), one_worker)


def test_a_peer_that_sends_a_byte_at_a_time_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_HANDSHAKE_SECONDS", 1)
    with socket.create_server((LOOPBACK, 0)) as listener, socket.create_connection(listener.getsockname()) as peer:
        is_over = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                peer.sendall((100).to_bytes(4, "big"))
                while not is_over.wait(0.1):
                    peer.sendall(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            with pytest.raises(EOFError, match="the peer did not prove itself within 1 s"):
                sockets.accept(listener, KEY.encode(), SECONDS)
        finally:
            is_over.set()
            sender.join()


def test_strangers_that_come_all_the_time_do_not_put_off_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_OPENING_SECONDS", 0.1)
    monkeypatch.setattr(sockets, "_HANDSHAKE_SECONDS", 1)
    machines = Machines(LOOPBACK, 0, count=2, ranks_each=1, key=KEY.encode())
    with socket.create_server((LOOPBACK, 0)) as listener, contextlib.ExitStack() as strangers:
        for _ in range(3):
            strangers.enter_context(socket.create_connection(listener.getsockname()))
        with pytest.raises(TimeoutError, match=r"its next connection did not come within 0\.1 s"):
            machines._opened(listener, b"token")
        listener.setblocking(False)
        for _ in range(2):  # Nobody has looked at them.
            strangers.enter_context(listener.accept()[0])
