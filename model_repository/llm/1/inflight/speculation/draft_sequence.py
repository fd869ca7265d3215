"""One request as the draft model sees it."""

from collections.abc import Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import ScheduledRequest
from inflight.speculation.acceptance import new_share


class DraftSequence:
    """The known tokens of a request and then those of a draft, with blocks in the draft model's own cache.

    The draft is drawn with the request's temperature and random numbers. So where the models agree, their tokens do.
    """

    def __init__(self, request: Request, vocab_size: int) -> None:
        """`vocab_size` is the number of tokens of the draft model."""
        wanted = request.params
        params = SamplingParams(
            temperature=wanted.temperature, top_k=wanted.top_k, top_p=wanted.top_p, min_p=wanted.min_p
        )
        self._sequence = Request(
            request.request_id, request.prompt_ids, params, request.max_tokens, request.seed, options=request.options
        )
        self.share = new_share()
        """How often its drafts were right."""
        self._vocab_size = vocab_size
        self.is_readable = self._can_read(request.prompt_ids)
        """Whether the draft model has all known tokens. The model that verifies may have more, as for images."""
        self._drafted_at = len(request.prompt_ids)
        self._draft: list[int] = []
        self._num_known = 0
        """Computed tokens that are known, not drafted. Other requests may reuse their blocks."""

    @property
    def draft(self) -> list[int]:
        return self._draft

    def follow(self, token_ids: list[int], tables: BlockTables) -> None:
        """Take over the tokens of the request. What was computed for drafted tokens stays as far as they were right."""
        sequence = self._sequence
        mine, first = sequence.token_ids, min(self._drafted_at, len(token_ids))
        while first < min(len(mine), len(token_ids)) and mine[first] == token_ids[first]:
            first += 1
        mine[first:] = token_ids[first:]
        self.is_readable = self.is_readable and self._can_read(mine[first:])
        # The next draft needs the logits of the last token, which a draft that was not used may have computed.
        computed = min(first, sequence.num_computed, len(token_ids) - 1)
        if sequence.blocks:
            sequence.num_computed = self._num_known
            tables.commit(sequence, computed - self._num_known)
            tables.trim(sequence)
        self._num_known = sequence.num_computed
        self._drafted_at, self._draft = len(token_ids), []

    def outcomes(self, token_ids: Sequence[int]) -> list[bool]:
        """Return whether each token of the draft was right, up to the first wrong one, and forget the draft."""
        right = [mine == theirs for mine, theirs in zip(self._draft, token_ids[self._drafted_at :], strict=False)]
        self._draft = []
        return right[: right.index(False) + 1] if False in right else right

    def take_room(self, tables: BlockTables) -> bool:
        """Take the blocks for all tokens. Return False if there are too few."""
        if self._sequence.blocks:
            return tables.grow(self._sequence)
        hit = tables.prefixes.lookup(self._sequence)
        if tables.fresh_blocks(self._sequence, hit) > tables.pool.num_free:
            return False
        tables.admit(self._sequence, hit)
        self._num_known = self._sequence.num_computed
        return True

    def release(self, tables: BlockTables) -> None:
        """Free all blocks."""
        tables.release(self._sequence)

    def next(self, most: int) -> ScheduledRequest:
        """Schedule up to `most` of the tokens that are not computed."""
        return ScheduledRequest.next_of(self._sequence, min(most, self._sequence.num_uncomputed))

    def goes_on(self, count: int) -> bool:
        """Return whether the last step found a token, and a draft of `count` tokens needs more."""
        return 0 < len(self._draft) < count and self._sequence.num_uncomputed > 0

    def _can_read(self, token_ids: Sequence[int]) -> bool:
        return max(token_ids, default=0) < self._vocab_size

    def computed(self, scheduled: ScheduledRequest, new: Sequence[int]) -> None:
        """Note that scheduled tokens were computed, and the drafted tokens `new` after them."""
        self._sequence.num_computed = scheduled.end
        self._sequence.token_ids += new
        self._draft += new
