"""One request as the scheduler sees it: tokens known, tokens computed, blocks held."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.logits_processors.processor import LogitsProcessor
from inflight.request_options import RequestOptions
from inflight.sampling_params import SamplingParams

STOP = "stop"
LENGTH = "length"
DEADLINE = "deadline"
EXPIRED = "expired"
"""Its time was up before it ran."""
CANCELLED = "cancelled"
ERROR = "error"
FINISH_REASONS = (STOP, LENGTH, DEADLINE, EXPIRED, CANCELLED, ERROR)


@dataclass(eq=False, slots=True)
class Request:
    """A sequence on its way through the engine.

    There is no prefill phase and no decode phase: `token_ids` holds prompt and output so far, `num_computed` says
    how many of them have their keys and values in `blocks`, and a step computes some of the difference.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    """End-of-sequence and stop tokens of this request."""
    processors: tuple[LogitsProcessor, ...] = ()
    """What changes its logits before a token is chosen; their state follows the output."""
    arrival: float = 0.0
    """Seconds on the monotonic clock."""
    options: RequestOptions = field(default_factory=RequestOptions)

    # Set from the options when the request is queued.
    priority: int = 0
    """Level in the waiting queue: 1 is the highest, 0 the only one where there are no levels."""
    wait_until: float | None = None
    """When it has waited too long for its first step, on the clock of `arrival`."""
    deadline: float | None = None
    """When it ends wherever it is, on the clock of `arrival`."""
    number: int = 0
    """Its place in the order of arrival."""

    # What has become of it.
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    num_cached: int = 0
    """Prompt tokens that the prefix cache held when the request was first admitted."""
    num_preemptions: int = 0
    has_run: bool = False
    """Whether a step with some of its tokens has been committed."""
    last_token_at: float | None = None
    """When its newest token was sampled, on the clock of `arrival`."""
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    """Row of `BlockTableArray` that holds `blocks`, while there are any."""
    block_hashes: list[bytes] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    """Blocks in host memory that keep its first `num_swapped` keys and values while it is preempted."""
    num_swapped: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)

    @property
    def tenant(self) -> str:
        """Whose share of the server the request is charged to."""
        return self.options.tenant

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def max_cached_tokens(self) -> int:
        """Most tokens that this request ever keeps in the cache: the last one sampled is never computed."""
        return len(self.prompt_ids) + self.max_tokens - 1

    def append(self, token_ids: Sequence[int]) -> tuple[Sequence[int], str | None]:
        """Take the new tokens of a step; returns those up to the end of the request, and why it ends there, if so."""
        for count, token in enumerate(token_ids, start=1):
            self.token_ids.append(token)
            for processor in self.processors:
                processor.accept(token)
            if token in self.stop_token_ids or self.num_output >= self.max_tokens:
                reason = self.finish_reason(token)
                if reason is not None:
                    return token_ids[:count], reason
        return token_ids, None

    def finish_reason(self, token: int) -> str | None:
        """Why the newest token ends the request, if it does."""
        if token in self.stop_token_ids and self.num_output >= self.params.min_tokens:
            return STOP
        if len(self.token_ids) >= len(self.prompt_ids) + self.max_tokens:
            return LENGTH
        return None
