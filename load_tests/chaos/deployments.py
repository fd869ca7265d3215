"""What `make chaos` can start, with the faults that it causes there and the questions of its users."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from load_tests.chaos.doors import Question
from load_tests.chaos.faults import FAULTS, Fault, answering, signals
from load_tests.chaos.pair import LONG_QUESTIONS, PAIR_FAULTS, Pair
from load_tests.chaos.server import Server
from load_tests.chaos.service import Service, usual_parameters
from load_tests.chaos.users import QUESTIONS

_RANKS = 3
"""The default model has three KV heads."""


@dataclass(frozen=True)
class Deployment:
    """A service, its faults, and what users ask."""

    make: Callable[[Path], Service]
    faults: Sequence[Fault]
    questions: Sequence[Question] = QUESTIONS
    users: int = 32
    """Fewer where an answer takes longer: on two processors, an answer to all of them takes some two seconds."""


def _divided(folder: Path) -> Service:
    """A server whose model is divided over several processes."""
    return Service(folder, {**usual_parameters(folder / "server"), "tensor_parallel_size": str(_RANKS)})


def _one_rank(service: Service) -> int:
    ranks = service.server.ranks()
    if not ranks:
        raise ProcessLookupError("the model has no other rank")
    return random.choice(ranks)


RANK_FAULTS = (
    Fault("rank killed", signals(_one_rank, SIGKILL), restarts=True),
    Fault("rank stopped for 10 s", signals(_one_rank, SIGSTOP, SIGCONT), 10),
    Fault("rank 0 killed", signals(answering(Server.model), SIGKILL), restarts=True),
    Fault("rank 0 stopped for 3 s", signals(answering(Server.model), SIGSTOP, SIGCONT), 3),
    Fault("tritonserver killed", signals(answering(Server.triton), SIGKILL), restarts=True),
)

DEPLOYMENTS = {
    "single": Deployment(Service, FAULTS),
    "ranks": Deployment(_divided, RANK_FAULTS, users=4),
    "pair": Deployment(Pair, PAIR_FAULTS, LONG_QUESTIONS, users=16),
}
"""By their names."""
