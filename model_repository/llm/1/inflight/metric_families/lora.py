"""Metrics of LoRA adapters."""

from inflight.metric_families.family import COUNTER, Family

LORA = Family(
    "inflight:lora_requests_total",
    COUNTER,
    "Ended outputs of requests with a LoRA adapter, by the name of the adapter. It exists only with `lora_modules`.",
    label="lora_name",
    read=lambda stats: stats.lora_requests,
)
