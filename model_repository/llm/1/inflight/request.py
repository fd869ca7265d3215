"""One request as the scheduler sees it: tokens known, tokens computed, blocks held."""

from dataclasses import dataclass, field

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
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output must not hold."""
    arrival: float = 0.0
    """Seconds on the monotonic clock."""
    priority: int = 0
    """Level in the waiting queue: 1 is the highest, 0 the only one where there are no levels."""
    tenant: str = ""
    """Whose share of the server the request is charged to; empty: everyone's."""
    target_ttft: float | None = None
    """Seconds from arrival within which its first token is wanted; None: as the scheduler is configured."""
    wait_until: float | None = None
    """When it has waited too long for its first step, on the clock of `arrival`."""
    deadline: float | None = None
    """When it ends wherever it is, on the clock of `arrival`."""
    trace_context: str | None = None
    """What the client's OpenTelemetry trace is called, as Triton says it: JSON."""
    token_ids: list[int] = field(init=False)
    number: int = 0
    """Its place in the order of arrival."""
    num_computed: int = 0
    num_cached: int = 0
    """Prompt tokens that the prefix cache held when the request was first admitted."""
    num_preemptions: int = 0
    last_token_at: float | None = None
    """When its newest token was sampled, on the clock of `arrival`."""
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    """Blocks in host memory that keep its first `num_swapped` keys and values while it is preempted."""
    num_swapped: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)

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

    def finish_reason(self) -> str | None:
        """Why the newest token ends the request, if it does."""
        if self.num_output >= self.params.min_tokens and self.token_ids[-1] in self.stop_token_ids:
            return STOP
        if self.num_output >= self.max_tokens:
            return LENGTH
        return None
