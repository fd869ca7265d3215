"""A model that is loaded over ranks, of which this process is rank 0."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from inflight.config import EngineConfig
from inflight.errors import EngineDead, OutOfMemory
from inflight.model.loading.checkpoint_digest import checkpoint_digest
from inflight.model.loading.loader import device_of, load_model
from inflight.model.parallel.protocol import DONE, FAILED, LOAD, PREPARE, SHORT, Load, answer_of
from inflight.model.parallel.shards import Shards
from inflight.model.parallel.workers import Workers

T = TypeVar("T")

# In which a rank imports torch, and may ask the hub for a commit.
_PREPARING_SECONDS = 300.0
LOADING_SECONDS = 2 * 3600.0


class DividedModel:
    """Rank 0's part of a model, and what it shares with the other ranks."""

    def __init__(self, config: EngineConfig, workers: Workers) -> None:
        """Load the model on all ranks. What the workers have served before must not be used any more.

        Raises:
            EngineDead: another rank has ended.
            Exception: what `load_model` raises here, or a RuntimeError that says what it has raised on another rank.
        """
        self.workers = workers
        rendezvous = workers.new_rendezvous()
        self.shards = shards = Shards(0, workers.size, device_of(config), rendezvous, workers.host)
        workers.be_patient(lambda _: shards.abandon())
        workers.tell(PREPARE, pickle.dumps(Load(config, rendezvous, checkpoint_digest(config))))
        self.together(lambda: None, _PREPARING_SECONDS)
        workers.tell(LOAD, b"")
        self.mine = self.together(partial(load_model, config, self.shards), LOADING_SECONDS)
        """This rank's part."""

    def together(self, work: Callable[[], T], seconds: float) -> T:
        """Do this rank's part of the last command. Return when all ranks have done theirs.

        If one has failed, none is left in a collective, and `shards` must be renewed on all.

        Raises:
            OutOfMemory: a rank had too little memory.
            EngineDead: a rank has ended, does not answer within `seconds`, or does not come to a collective.
            Exception: what has failed on this rank, or a RuntimeError that says what has failed on another one.
        """
        mine, fault = DONE, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it is raised below, when the other ranks have answered
            # Without the traceback, which keeps what the step has allocated.
            mine, fault = answer_of(error), error.with_traceback(None)
        if fault is not None:
            self.shards.abandon()
        found = [mine, *self.workers.answers(seconds)]
        if all(answer == DONE for answer in found):
            return result
        if fault is not None and mine.startswith(FAILED):
            raise fault
        kinds = [answer[:1] for answer in found]
        reasons = [f"rank {rank}: {answer[1:].decode()}" for rank, answer in enumerate(found)]
        if FAILED in kinds:
            raise RuntimeError(reasons[kinds.index(FAILED)])
        if SHORT in kinds:
            raise OutOfMemory(reasons[kinds.index(SHORT)])
        reason = "; ".join(reason for reason, kind in zip(reasons, kinds, strict=True) if kind != DONE)
        self.workers.kill(reason)
        raise EngineDead(reason)
