"""One rank other than 0: it does what rank 0 says, and answers whether it is done."""

import logging
import pickle
from multiprocessing.connection import Connection

import numpy as np
import torch

from inflight.config import EngineConfig
from inflight.model.batch_arrays import Ints
from inflight.model.loading.checkpoint_digest import checkpoint_digest
from inflight.model.loading.loader import LoadedModel, device_of, load_model
from inflight.model.parallel.adapter_message import put_on_all_ranks
from inflight.model.parallel.inserts import Inserts
from inflight.model.parallel.protocol import ADAPTER, ALLOCATE, DONE, HEAD, LOAD, PREPARE, RENEW, STEP, Load, answer_of
from inflight.model.parallel.shards import Shards
from inflight.model.parallel.step_message import Places, StepMessage
from inflight.model.runner import ModelRunner, within_memory

logger = logging.getLogger(__name__)


class Rank:
    """Serves one model after the other."""

    def __init__(self, rank: int, size: int, host: str, connection: Connection) -> None:
        """`host` is the address of this machine for the other ranks."""
        self._rank, self._size, self._host, self._connection = rank, size, host, connection
        self._shards: Shards | None = None
        self._config: EngineConfig
        self._model: LoadedModel
        self._runner: ModelRunner

    def serve(self) -> None:
        """Do what rank 0 says, until it closes the connection."""
        while True:
            try:
                message = self._connection.recv_bytes()
            except (EOFError, OSError):
                return
            command, number, argument = message[:1], message[1:2], message[2:]
            answer = DONE
            try:
                self._do(command, argument)
            except Exception as error:
                answer = answer_of(error)
                logger.info("rank %d has failed", self._rank, exc_info=error)
            if answer != DONE and self._shards is not None:
                self._shards.abandon()
            try:
                self._connection.send_bytes(number + answer)
            except OSError:
                return

    @torch.inference_mode()
    def _do(self, command: bytes, argument: bytes) -> None:
        if command == STEP:
            step = StepMessage.decode(_numbers(argument))
            self._runner.copy(step.swapped_out, step.forked, step.swapped_in)
            self._runner.forward(step.arrays, *within_memory(lambda: self._received(step.places)))
        elif command == HEAD:
            self._head(*_numbers(argument).tolist())
        elif command == ADAPTER:
            self._put_adapter(_numbers(argument))
        elif command == RENEW and self._shards is not None:
            self._shards.renew(int(_numbers(argument)[0]))
        elif command == ALLOCATE:
            self._allocate(pickle.loads(argument))
        elif command == PREPARE:
            self._prepare(pickle.loads(argument))
        elif command == LOAD:
            self._model = load_model(self._config, self._shards)

    def _prepare(self, load: Load) -> None:
        """Find what makes a load impossible on this machine, while no other rank waits for this one."""
        if load.checkpoint != (here := checkpoint_digest(load.config)):
            raise ValueError(
                f"model is {load.config.model!r}, whose files are not those of rank 0 (digest {here}, not "
                f"{load.checkpoint})"
            )
        device = device_of(load.config, self._rank)
        self._shards = Shards(self._rank, self._size, device, load.rendezvous, self._host)
        self._config = load.config

    def _allocate(self, config: EngineConfig) -> None:
        self._runner = ModelRunner(self._model, config)

    def _received(self, places: Places) -> Inserts:
        assert self._model.shards is not None
        return Inserts.room(places, self._model).broadcast(self._model.shards)

    def _head(self, rows: int, width: int) -> None:
        """Compute this rank's columns of the logits of hidden states [rows, width], which rank 0 broadcasts."""
        model = self._model
        assert model.shards is not None
        hidden = model.shards.broadcast(torch.empty((rows, width), dtype=model.dtype, device=model.device))
        within_memory(lambda: model.forward.head(hidden))

    def _put_adapter(self, message: Ints) -> None:
        model = self._model
        assert model.shards is not None
        assert model.adapters is not None
        put_on_all_ranks(model.adapters.layers, message, model.shards, None)


def _numbers(argument: bytes) -> Ints:
    # A copy, as torch warns of arrays that cannot be written.
    return np.frombuffer(argument, dtype=np.int64).copy()
