"""The requests of one beam search: for the scheduler and the model, each beam is a sequence of its own."""

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from inflight.beam_search.search import BeamSearch, Hypothesis
from inflight.request import Request


class Move(NamedTuple):
    """A beam of the next step: `target` continues the tokens of `source` with a new one."""

    source: Request
    target: Request
    token: int


class BeamGroup:
    """The request that was submitted, called the leader, and the requests of the other beams, which nobody else sees.

    The leader alone waits in the queue and computes the prompt. From then on the others run beside it. They are
    preempted together, and then the search begins again.
    """

    def __init__(self, leader: Request, search: BeamSearch) -> None:
        self.leader = leader
        self.search = search
        self.moves: list[Move] = []
        """The next beams, until they have blocks. Each source is the target of its first move."""
        self._others: list[Request] = []
        self._beams = [leader]
        """The request of each beam, best first."""
        self._found: dict[Request, Mapping[int, float]] = {}

    @property
    def width(self) -> int:
        return self.search.width

    @property
    def members(self) -> list[Request]:
        """The leader and, while it runs, the requests of the other beams."""
        return [self.leader, *self._others]

    def join(self) -> list[Request]:
        """Return new requests, without tokens, for all beams but the first. Call this when the leader joins."""
        self._others = [self._other() for _ in range(self.width - 1)]
        return self._others

    def _other(self) -> Request:
        leader = self.leader
        other = Request(
            request_id=f"beam-{uuid.uuid4().hex}",
            prompt_ids=[],
            params=leader.params,
            max_tokens=leader.max_tokens,
            seed=leader.seed,
            stop_token_ids=leader.stop_token_ids,
            arrival=leader.arrival,
            options=leader.options,
            adapter=leader.adapter,
            images=leader.images,
            embeds=leader.embeds,
            rope_switch=leader.rope_switch,
        )
        other.prompt_ids, other.beams, other.has_run = leader.prompt_ids, self, True
        other.priority, other.number = leader.priority, leader.number
        other.class_name, other.is_leftover = leader.class_name, leader.is_leftover
        return other

    def restart(self) -> None:
        """Forget all but the prompt. Call this when the group has lost its blocks."""
        leader = self.leader
        leader.token_ids = list(leader.prompt_ids)
        leader.block_hashes.clear()
        self.moves.clear()
        self._others, self._beams = [], [leader]
        self._found.clear()
        self.search.restart()

    def found(self, request: Request, likeliest: Mapping[int, float]) -> bool:
        """Note the likeliest next tokens of a beam. Return whether those of all beams are known."""
        self._found[request] = likeliest
        return len(self._found) == self.search.num_beams

    def advance(self) -> bool:
        """Plan the `moves` to the next beams. Return False if the search has ended."""
        found = [self._found[request] for request in self._beams]
        self._found.clear()
        steps = self.search.advance(found, [request.output_ids for request in self._beams])
        if steps is None:
            return False
        parents = {self._beams[step.parent] for step in steps}
        free = iter([request for request in self.members if request not in parents])
        for step in steps:
            source = self._beams[step.parent]
            stays = source in parents
            parents.discard(source)
            self.moves.append(Move(source, source if stays else next(free), step.token))
        self._beams = [move.target for move in self.moves]
        return True

    def moved(self) -> None:
        """Give the beams their new tokens. Call this when each has the blocks of its source."""
        for move in self.moves:
            move.target.token_ids.append(move.token)
        self.moves.clear()

    def best(self, reason: str) -> list[Hypothesis]:
        """Return the `width` best outputs, best first. Beams that have not ended are cut off for this reason."""
        outputs = [request.output_ids for request in self._beams]
        if self.moves:
            outputs = [[*move.source.output_ids, move.token] for move in self.moves]
        return self.search.best(outputs, reason)
