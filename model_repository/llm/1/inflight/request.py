"""One request as the scheduler sees it: known tokens, computed tokens and blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from inflight.classifier import Classifier
from inflight.draws import Draws
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.logits_processors.processor import LogitsProcessor
from inflight.lora.adapter import Adapter
from inflight.pooling_params import LAST, PoolingParams
from inflight.prompt_embeds import PromptEmbeds
from inflight.prompt_images import PromptImages
from inflight.request_options import RequestOptions
from inflight.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inflight.beam_search.beam_group import BeamGroup
    from inflight.guided_decoding.grammar_state import GrammarState
    from inflight.kv_cache.imported_blocks import ImportedBlocks
    from inflight.scheduler.output_lengths.predictor import Forecast
    from inflight.speculation.follower import Follower

STOP = "stop"
LENGTH = "length"
DEADLINE = "deadline"
EXPIRED = "expired"
"""The request's own time limit passed before its first step."""
SHED = "shed"
"""The queue gave the request up before its first token: after the queue's timeout, or because its target is lost."""
CANCELLED = "cancelled"
INVALID = "invalid"
"""The request turned out to be one that cannot be served: its grammar is too complex."""
ERROR = "error"
FINISH_REASONS = (STOP, LENGTH, DEADLINE, EXPIRED, SHED, CANCELLED, INVALID, ERROR)


@dataclass(slots=True)
class Preemption:
    """When a request lost its blocks, on the clock of `Request.arrival`; also the next two."""

    at: float
    resumed_at: float | None = None
    """When it was admitted again; None while it waits."""
    recomputed_at: float | None = None
    """When its next token was sampled; None if it ended or was preempted again before that."""


@dataclass(eq=False, slots=True)
class Request:
    """One sequence, from its arrival to its last token.

    There is no prefill phase and no decode phase. `token_ids` holds the prompt and the output so far. The keys and
    values of the first `num_computed` of these tokens are in `blocks`. A step computes some of the other tokens.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int
    """0: the request ends with its prompt, of which it wants scores or an embedding."""
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    """End-of-sequence and stop tokens of this request."""
    processors: tuple[LogitsProcessor, ...] = ()
    """They change the request's logits before a token is chosen. Their state follows the output."""
    grammar: "GrammarState | None" = None
    """Where the output stands in its grammar, if it is guided."""
    beams: "BeamGroup | None" = None
    """The beam search that the request is part of."""
    pooling: PoolingParams | None = None
    """How to make an embedding, or probabilities of classes, if the request wants that."""
    classifier: Classifier | None = None
    """The head that computes these probabilities."""
    images: PromptImages | None = None
    """Those of its prompt."""
    embeds: PromptEmbeds | None = None
    """Those in its prompt. A request with images has none."""
    rope_switch: int | None = None
    """The model rotates the keys and queries of sequences with more tokens in another way. None if no length changes
    that."""
    arrival: float = 0.0
    """Seconds on the monotonic clock."""
    options: RequestOptions = field(default_factory=RequestOptions)
    draws: Draws = field(init=False)

    # Set from the options when the request is queued.
    adapter: Adapter | None = None
    """Changes the model for this request. None once it has ended."""
    priority: int = 0
    """Level in the waiting queue; 1 is the highest. Without levels, every request has 0."""
    wait_until: float | None = None
    """When the wait for the first step times out, on the clock of `arrival`."""
    deadline: float | None = None
    """When the request ends, whether it waits or runs, on the clock of `arrival`."""
    class_name: str = ""
    """Its class under the scheduling policy `classes`."""
    is_leftover: bool = False
    """Whether it gets only what the requests of other classes leave."""
    number: int = 0
    """Position in the order of arrival. A request that is moved back after a timeout gets a new one."""

    read_end: int = field(init=False, default=0)
    """What the model computes for the prompt tokens before this position is read token by token: log-probabilities of
    the tokens that follow them, or hidden states to pool. 0: nothing is read."""

    # State, updated as the request runs.
    token_ids: list[int] = field(init=False)
    num_new: int = 1
    """How many tokens the last step with a new token brought; 1 before the first one."""
    num_forced: int = 0
    """How many output tokens the grammar forced, so that they were not sampled."""
    queued_key: float = 0.0
    """The key with which `sjf` queued the request last."""
    wait_in_order: float = 0.0
    """How long the request would have waited under first come, first served, in seconds, as `sjf` expects."""
    latest_start: float = 0.0
    """When the request goes before all others under `sjf`, on the clock of `arrival`."""
    is_late: bool = False
    """Whether it waited until then. It keeps its rank."""
    forecast: "Forecast | None" = None
    """What the length predictor knows of the output, if it reads prompts."""
    follower: "Follower | None" = None
    """Finds drafts in earlier tokens, once the request may use them."""
    may_draft: bool = True
    """False once a draft had keys and values that were not numbers."""
    num_drafted: int = 0
    """How many tokens were drafted and computed."""
    num_accepted: int = 0
    """How many of these were right, and are part of the output."""
    num_computed: int = 0
    num_cached: int = 0
    """Prompt tokens that the prefix cache held when the request was first admitted."""
    hits: dict[str, int] = field(default_factory=dict)
    """Tokens that were not computed when the request was last admitted, by where their keys and values were."""
    preemptions: list[Preemption] = field(default_factory=list)
    num_read: int = 0
    """So many prompt tokens need not be read, or have been read. Tokens computed again are not read again."""
    pooled: NDArray[np.float64] | None = None
    """The sum [width] of the hidden states read so far."""
    has_run: bool = False
    """Whether a step with some of the request's tokens has been committed."""
    first_step_at: float | None = None
    """When the first step of the request was planned, on the clock of `arrival`; also the next two."""
    first_token_at: float | None = None
    """When the first token was sampled."""
    last_token_at: float | None = None
    """When the newest token was sampled."""
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    """Row of `BlockTableArray` that holds `blocks`; valid while the request has blocks."""
    block_hashes: list[bytes] = field(default_factory=list)
    num_matched: int = 0
    """So many of its first full blocks were in the prefix cache when it was last looked up there. Only set for models
    with recurrent states."""
    num_named: int = 0
    """So many of `blocks` are in the prefix cache, or were offered to it."""
    num_reserved: int = 0
    """Blocks that the other beams of a search may need, until they have blocks of their own."""
    host_blocks: list[int] = field(default_factory=list)
    """Blocks in host memory that keep the keys and values of the first `num_swapped` tokens during preemption."""
    num_swapped: int = 0
    imported: "ImportedBlocks | None" = None
    """Keys and values from elsewhere, until the request joins."""
    kv_transfer_params: KVTransferParams | None = None
    """Where another engine finds those of the prompt, once they are exported."""

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.draws = Draws(self.params, self.seed)
        if self.pooling is not None:
            self.read_end = len(self.prompt_ids)
            self.num_read = self.read_end - 1 if self.pooling.pooling == LAST else 0
        elif self.params.prompt_logprobs is not None:
            self.read_end = len(self.prompt_ids) - 1

    @property
    def tenant(self) -> str:
        """The tenant that the request is charged to."""
        return self.options.tenant

    @property
    def inserts(self) -> PromptImages | PromptEmbeds | None:
        """What takes the place of tokens of its prompt, so that these alone do not say what is computed."""
        return self.images or self.embeds

    @property
    def num_preemptions(self) -> int:
        return len(self.preemptions)

    @property
    def leader(self) -> "Request":
        """The request that was submitted: this one, unless it is a beam of another."""
        return self if self.beams is None else self.beams.leader

    @property
    def members(self) -> "list[Request]":
        """This request, or all of its beam search."""
        return [self] if self.beams is None else self.beams.members

    @property
    def num_sequences(self) -> int:
        """How many sequences run when the request runs."""
        return self.params.beam_width

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens a step reports with a new token; None for no log-probabilities."""
        return self.params.logprobs if self.beams is None else self.beams.search.num_candidates

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def decodes(self) -> bool:
        """Whether all uncomputed tokens came in the last step with a new token. Otherwise the request has a prompt to
        compute, or tokens to compute again."""
        return self.num_uncomputed <= self.num_new

    @property
    def is_long(self) -> bool:
        """Whether the sequence has more tokens than `rope_switch`."""
        return self.rope_switch is not None and len(self.token_ids) > self.rope_switch

    @property
    def became_long(self) -> bool:
        """Whether the last step with a new token made the sequence long. Then all keys and values are of no use."""
        return self.is_long and self.num_output > 0 and len(self.token_ids) - self.num_new <= (self.rope_switch or 0)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def max_cached_tokens(self) -> int:
        """Maximum number of tokens that this request keeps in the cache. The last sampled token is never computed."""
        return len(self.prompt_ids) + max(0, self.max_tokens - 1)

    @property
    def max_reused_tokens(self) -> int:
        """Maximum number of known tokens whose keys and values may come from the prefix cache.

        The last token must be computed, because its logits or hidden state are needed. So must all tokens to be read.
        """
        last = len(self.token_ids) - 1
        return last if self.num_read >= self.read_end else min(last, self.num_read)

    def to_read(self, first: int, end: int) -> range:
        """Return the positions from `first` up to `end` whose tokens are to be read."""
        return range(max(first, self.num_read), min(end, self.read_end))

    def read(self, positions: range, states: NDArray[np.float64] | None) -> None:
        """Note that the tokens at these positions were read. `states` [width] is the sum of their hidden states."""
        if positions:
            self.num_read = positions.stop
        if states is not None:
            self.pooled = states if self.pooled is None else self.pooled + states

    def embedding(self) -> NDArray[np.float32] | None:
        """Return the embedding, [dimensions], of a request that wants one and whose tokens have all been read.

        For a request that classifies, these are the probabilities or logits of the classes.
        """
        if self.pooling is None or self.pooled is None or self.num_read < self.read_end:
            return None
        if self.classifier is not None:
            return self.classifier.values(self.pooled, activated=self.pooling.use_activation)
        return self.pooling.embedding(self.pooled, 1 if self.pooling.pooling == LAST else self.read_end)

    def sampled_at(self, now: float) -> None:
        """Note that a new token was sampled."""
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        if self.preemptions and self.preemptions[-1].recomputed_at is None:
            self.preemptions[-1].recomputed_at = now

    def append(self, token_ids: Sequence[int]) -> tuple[Sequence[int], str | None]:
        """Add the new tokens of a step, up to the end of the request. Return the added tokens and the finish reason.

        The finish reason is None if the request goes on. The added tokens include those that the grammar forces, unless
        their log-probabilities are wanted: then each gets a step of its own.
        """
        added, reason = self._extend(token_ids)
        if reason is None and self.grammar is not None and self.grammar.forced and self.params.logprobs is None:
            forced, reason = self._extend(tuple(self.grammar.forced))
            self.num_forced += len(forced)
            added = [*added, *forced]
        self.num_new = len(added)
        return added, reason

    def _extend(self, token_ids: Sequence[int]) -> tuple[Sequence[int], str | None]:
        for count, token in enumerate(token_ids, start=1):
            self.token_ids.append(token)
            for processor in self.processors:
                processor.accept(token)
            if self.grammar is not None:
                self.grammar.accept(token)
            reason = self.finish_reason(token)
            if reason is not None:
                return token_ids[:count], reason
            if self._is_forced_otherwise(token_ids, count):
                return token_ids[:count], None
        return token_ids, None

    def _is_forced_otherwise(self, token_ids: Sequence[int], count: int) -> bool:
        """Whether the grammar forces another token than the one after the first `count` ones, which was drafted."""
        if self.grammar is None or not self.grammar.forced or count == len(token_ids):
            return False
        return token_ids[count] != self.grammar.forced[0]

    def finish_reason(self, token: int) -> str | None:
        """Return the finish reason if the newest token, `token`, ends the request."""
        if token in self.stop_token_ids and self.num_output >= self.params.min_tokens:
            return STOP
        if self.grammar is not None and self.grammar.ended:
            return STOP
        if len(self.token_ids) >= len(self.prompt_ids) + self.max_tokens:
            return LENGTH
        return None
