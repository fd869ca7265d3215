"""Metrics of steps: what they compute, what they could have computed, and how long they take."""

from inflight import metrics
from inflight.metric_families.family import COUNTER, Family, filled, value

STEPS = (
    Family(
        "inflight:computed_tokens_total",
        COUNTER,
        "Tokens that went through the model. `decode`: one at a time, after a request's first output token. `draft`: "
        "drafted ones, where there are any. `prefill`: all others, including those computed again after a preemption.",
        label="kind",
        read=lambda s: {
            "prefill": s.prefill_tokens,
            "decode": s.decode_tokens,
            **({"draft": s.draft_tokens} if s.accepted_draft_tokens_at else {}),
        },
    ),
    value(
        "inflight:step_budget_tokens_total",
        COUNTER,
        "Tokens that the steps could have computed, `max_num_batched_tokens` each. The rate of computed tokens divided "
        "by the rate of this metric is the batch utilisation.",
        lambda s: s.budget_tokens,
    ),
    value(
        "inflight:padding_tokens_avoided_total",
        COUNTER,
        "Additional tokens that padded batches of the same requests would have computed: for every step, the number of "
        "rows times the longest row, minus the tokens.",
        lambda s: s.padding_avoided,
    ),
    value(
        "inflight:padding_tokens_total",
        COUNTER,
        "Additional tokens that the batching strategies `static`, `dynamic` and `bucketed` would compute if they "
        "padded: prompts to the longest prompt of the batch, and the slots of requests that ended early. They are only "
        "counted, not computed.",
        lambda s: s.padding_tokens,
    ),
    filled("inflight:step_duration_seconds", metrics.STEP_SECONDS, "Duration of a step."),
    filled("inflight:iteration_tokens_total", metrics.STEP_TOKENS, "Tokens computed in a step."),
    filled("inflight:iteration_requests", metrics.STEP_REQUESTS, "Requests in a step."),
)
