"""Metrics of guided decoding."""

from inflight.metric_families.family import COUNTER, value

GUIDED_DECODING = (
    value(
        "inflight:grammar_forced_tokens_total",
        COUNTER,
        "Output tokens that were not sampled, because the request's grammar allowed no other.",
        lambda s: s.forced_tokens,
    ),
    value(
        "inflight:grammar_compilations_total",
        COUNTER,
        "Schemas, regular expressions and grammars that were compiled or refused. Equal ones are compiled once.",
        lambda s: s.grammars_compiled,
    ),
    value(
        "inflight:grammar_compile_seconds_total",
        COUNTER,
        "Time spent on compiling them, on a thread of its own.",
        lambda s: s.grammar_compile_seconds,
    ),
    value(
        "inflight:grammar_mask_seconds_total",
        COUNTER,
        "Time spent on finding the tokens that grammars allow, while the model runs.",
        lambda s: s.grammar_mask_seconds,
    ),
)
