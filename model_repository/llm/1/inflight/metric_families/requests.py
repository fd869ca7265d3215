"""Metrics of requests: how many there are, how they end, how long they are and how long they take."""

from inflight import metrics
from inflight.metric_families.family import COUNTER, GAUGE, Family, filled, histogram, live, value

REFUSAL_REASONS = ("invalid", "overload", "error")

_REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_QUEUE_SECONDS = (0.001, 0.005, 0.02, 0.05, 0.1, *_REQUEST_SECONDS)
_LENGTHS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))

PRESENT = (
    live("inflight:num_requests_running", "Requests in the running set.", lambda s: s.running),
    live("inflight:num_requests_waiting", "Requests that wait to be admitted.", lambda s: s.waiting),
    Family(
        "inflight:num_requests_waiting_by_priority",
        GAUGE,
        "Those of each priority level, up to level 16. It exists only with `priority_levels`.",
        label="priority",
        read=lambda s: {str(level): count for level, count in s.waiting_at_level.items()},
    ),
    value(
        "inflight:num_tokens_waiting",
        GAUGE,
        "Tokens of the requests that wait to be admitted; `max_queue_tokens` bounds them.",
        lambda s: s.waiting_tokens,
    ),
)
"""Requests that run or wait."""

ENDED = (
    Family(
        "inflight:request_success_total",
        COUNTER,
        "Requests that ended, by finish reason. Each of n samples counts as a request. The name is vLLM's: requests "
        "that were cancelled, timed out or failed count too, under their own reasons.",
        label="finished_reason",
        read=lambda s: s.finished,
    ),
    Family(
        "inflight:request_refused_total",
        COUNTER,
        "Requests that were refused on arrival: `invalid` (bad input), `overload` (the queue is full) or `error` (an "
        "internal error).",
        label="reason",
    ),
    value(
        "inflight:prompt_tokens_total",
        COUNTER,
        "Prompt tokens of the requests that have begun, including tokens found in the prefix cache.",
        lambda s: s.prompt_tokens,
    ),
    value(
        "inflight:generation_tokens_total",
        COUNTER,
        "Tokens of outputs, including the tokens that end an output.",
        lambda s: s.output_tokens,
    ),
)
"""How requests ended, and the tokens of those that have begun."""

TIMES_AND_LENGTHS = (
    histogram(
        "inflight:time_to_first_token_seconds",
        metrics.FIRST_TOKEN_SECONDS,
        _FIRST_TOKEN_SECONDS,
        "Time from a request's arrival to the end of the step that sampled its first token.",
    ),
    filled(
        "inflight:inter_token_latency_seconds",
        metrics.TOKEN_GAP_SECONDS,
        "Time between two tokens of a request, measured between the ends of the steps that sampled them.",
    ),
    histogram(
        "inflight:e2e_request_latency_seconds",
        metrics.REQUEST_SECONDS,
        _REQUEST_SECONDS,
        "Time from a request's arrival to its last piece of output, for every finish reason.",
    ),
    histogram(
        "inflight:request_queue_time_seconds",
        metrics.QUEUE_SECONDS,
        _QUEUE_SECONDS,
        "Time from a request's arrival to the start of its first step.",
    ),
    histogram(
        "inflight:request_prompt_tokens",
        metrics.PROMPT_TOKENS,
        _LENGTHS,
        "Prompt tokens of a request that ended, for every finish reason.",
    ),
    histogram(
        "inflight:request_generation_tokens",
        metrics.OUTPUT_TOKENS,
        _LENGTHS,
        "Output tokens of a request that ended, for every finish reason.",
    ),
)
