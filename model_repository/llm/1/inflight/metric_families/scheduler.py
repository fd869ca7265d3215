"""Metrics of what the scheduler learns: output lengths, and the settings that it tunes."""

from inflight.metric_families.family import COUNTER, GAUGE, Family

LEARNED = (
    Family(
        "inflight:length_rank_correlation",
        GAUGE,
        "Spearman's rank correlation of predicted and true output lengths, over the newest 256 outputs, from -1 to 1. "
        "`prompt`: of predictions from the prompt; `tenant`: of those from the tenant's past outputs; `used`: of those "
        "that are used. 0 until 64 outputs are known. It exists with a `length_predictor` that reads prompts.",
        label="prediction",
        read=lambda s: {name: round(1024 * found) / 1024 for name, found in s.length_correlations.items()},
    ),
    Family(
        "inflight:auto_tune_setting",
        GAUGE,
        "Settings that `auto_tune` adjusts: `max_num_seqs`, `max_num_batched_tokens`, `prompts_side_by_side` (1 if "
        "prompts share steps), `step_seconds` (how long prompts may make a step with decodes) and `watermark_tokens` "
        "(for how many tokens of each running request admission keeps blocks). Like the next one, it exists only with "
        "`auto_tune`.",
        label="setting",
        read=lambda s: s.tuned,
    ),
    Family(
        "inflight:auto_tune_changes_total",
        COUNTER,
        "How often each of them has changed. The trace has the reasons.",
        label="setting",
        read=lambda s: s.tunings,
    ),
)
