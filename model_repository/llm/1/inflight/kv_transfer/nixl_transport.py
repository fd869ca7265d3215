"""Reads exports out of the other engine's memory with NIXL, NVIDIA's library for it: by RDMA, where there are cards."""

import importlib
import ipaddress
import logging
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.kv_transfer.stream_transports import TcpTransport
from inflight.kv_transfer.wire import BrokenTransfer, receive_into, receive_message, send_message, time_left

logger = logging.getLogger(__name__)

# The package for CUDA 12 also works without CUDA.
_PACKAGES = ("nixl_cu12", "nixl_cu13")
_BACKEND = "UCX"
_POLL_SECONDS = 0.0002
_MOST_METADATA_BYTES = 1 << 20
_READ = "read"


class NixlTransport(TcpTransport):
    """Consumers find producers over TCP, and then read the bytes of an export by themselves.

    The producer registers the export's memory for as long as it is read. NIXL's own thread for progress would keep a
    core busy, so the threads that send and receive call NIXL until they are done.
    """

    def __init__(self, config: KVTransferConfig) -> None:
        """Raises ValueError if NIXL is not installed, or does not work here."""
        super().__init__(config)
        if ipaddress.ip_address(config.kv_ip).is_loopback:
            # UCX would listen at all addresses.
            os.environ.setdefault("UCX_NET_DEVICES", "lo")
        nixl = _nixl()
        bindings = importlib.import_module(f"{nixl.__name__}._bindings")
        self._errors = tuple(error for name, error in vars(bindings).items() if name.endswith("Error"))
        self._name = uuid.uuid4().hex
        strict = nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        options = nixl.nixl_agent_config(enable_prog_thread=False, backends=[_BACKEND], sync_mode=strict)
        try:
            self._agent: Any = nixl.nixl_agent(self._name, options)
        except (RuntimeError, *self._errors) as error:
            raise ValueError(f"kv_transfer_config: kv_connector is 'nixl', which does not work here: {error}") from None
        self._locks = WeakValueDictionary[str, Any]()
        """A lock for each producer that is read from. The next lock guards it."""
        self._lock = threading.Lock()
        self._unfinished: list[object] = []
        """Reads that could not be cancelled, with the memory into which they write."""

    def close(self) -> None:
        """See `KVTransport`."""
        self._agent = None

    def send(self, connection: socket.socket, data: NDArray[np.uint8], deadline: float) -> None:
        """See `KVTransport`."""
        agent = self._usable_agent()
        with self._as_os_errors(), _registered(agent, data) as registered:
            metadata = agent.get_partial_agent_metadata(registered, True, [_BACKEND])
            offer = {"agent": self._name, "address": data.ctypes.data, "metadata_bytes": len(metadata)}
            send_message(connection, offer, deadline)
            connection.sendall(metadata)
            answered = select.poll()
            answered.register(connection, select.POLLIN)
            while not answered.poll(0):
                agent.update_notifs()
                time_left(deadline)
                time.sleep(_POLL_SECONDS)
        if receive_message(connection, deadline).get("op") != _READ:
            raise BrokenTransfer("the other side has not read the export")

    def receive(self, connection: socket.socket, num_bytes: int, deadline: float) -> NDArray[np.uint8]:
        """See `KVTransport`."""
        offer = receive_message(connection, deadline)
        name, address = str(offer.get("agent")), _count(offer, "address", 1 << 63)
        metadata = bytearray(_count(offer, "metadata_bytes", _MOST_METADATA_BYTES))
        receive_into(connection, memoryview(metadata), deadline)
        found = np.empty(num_bytes, dtype=np.uint8)
        agent = self._usable_agent()
        with self._as_os_errors(), self._known(agent, name, bytes(metadata), deadline):
            self._read(agent, name, address, found, deadline)
        send_message(connection, {"op": _READ}, deadline)
        return found

    def _read(self, agent: Any, name: str, address: int, found: NDArray[np.uint8], deadline: float) -> None:
        mine = agent.get_xfer_descs([(found.ctypes.data, len(found), 0)], "DRAM")
        # Not NIXL's own serialized form, which is unpickled.
        theirs = agent.get_xfer_descs([(address, len(found), 0)], "DRAM")
        registered = _register(agent, found)
        handle = None
        try:
            handle = agent.initialize_xfer("READ", mine, theirs, name, backends=[_BACKEND])
            state = agent.transfer(handle)
            while state == "PROC":
                time_left(deadline)
                time.sleep(_POLL_SECONDS)
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise BrokenTransfer("NIXL could not read the export")
        finally:
            self._end_read(agent, handle, registered, found)

    def _end_read(self, agent: Any, handle: Any, registered: Any, found: NDArray[np.uint8]) -> None:
        try:
            if handle is not None:
                agent.release_xfer_handle(handle)
        except self._errors as error:
            logger.warning("a read from another engine cannot be cancelled (%s); its memory is kept", error)
            self._unfinished.append((handle, registered, found))
        else:
            agent.deregister_memory(registered, [_BACKEND])

    def _usable_agent(self) -> Any:
        """The agent. After `close`, it ends with the last transfer that has begun."""
        if (agent := self._agent) is None:
            raise BrokenTransfer("this engine is closed")
        return agent

    @contextmanager
    def _known(self, agent: Any, name: str, metadata: bytes, deadline: float) -> Iterator[None]:
        """Let NIXL reach another agent in this context. One thread at a time: each export has metadata of its own."""
        if name == self._name:
            yield
            return
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        if not lock.acquire(timeout=time_left(deadline)):
            raise TimeoutError("other exports of this engine are being read")
        try:
            found = agent.add_remote_agent(metadata)
            found = found.decode() if isinstance(found, bytes) else found
            try:
                if found != name:
                    raise BrokenTransfer(f"the metadata are of {found!r}, not of {name!r}")
                yield
            finally:
                agent.remove_remote_agent(found)
        finally:
            lock.release()

    @contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise BrokenTransfer(f"NIXL: {error}") from None


def _nixl() -> Any:
    for name in _PACKAGES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ValueError("kv_transfer_config: kv_connector is 'nixl'; it needs the package nixl-cu12 or nixl-cu13")


def _register(agent: Any, data: NDArray[np.uint8]) -> Any:
    """Let NIXL read and write `data`."""
    return agent.register_memory([(data.ctypes.data, len(data), 0, "")], "DRAM", [_BACKEND])


@contextmanager
def _registered(agent: Any, data: NDArray[np.uint8]) -> Iterator[Any]:
    """Let NIXL read and write `data` in this context."""
    registered = _register(agent, data)
    try:
        yield registered
    finally:
        agent.deregister_memory(registered, [_BACKEND])


def _count(offer: Mapping[str, object], name: str, most: int) -> int:
    value = offer.get(name)
    if not isinstance(value, int) or not 0 < value < most:
        raise BrokenTransfer(f"{name} is {value!r}; it must be a whole number from 1 to below {most}")
    return value
