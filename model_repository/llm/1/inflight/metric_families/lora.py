"""Metrics of LoRA adapters."""

from inflight.metric_families.family import COUNTER, GAUGE, Family

LORA = (
    Family(
        "inflight:lora_requests_total",
        COUNTER,
        "Ended outputs of requests with a LoRA adapter, by the name of the adapter. After the first 100 adapters, the "
        "others share `(others)`. It exists only with `lora_modules` or `lora_folder`.",
        label="lora_name",
        read=lambda stats: stats.lora_requests,
    ),
    Family(
        "inflight:lora_adapters",
        GAUGE,
        "Adapters of `lora_folder` in memory. It exists only with that, as do the next two.",
        read=lambda stats: {} if stats.lora_adapters is None else {"": stats.lora_adapters},
    ),
    Family(
        "inflight:lora_requests_waiting",
        GAUGE,
        "Requests that wait until their adapter can be read. They do not count as waiting in the queue yet.",
        read=lambda stats: {} if stats.lora_waiting is None else {"": stats.lora_waiting},
    ),
    Family(
        "inflight:lora_loads_total",
        COUNTER,
        "How often an adapter was read from `lora_folder`. If it grows with each request, `max_loras` is too low.",
        read=lambda stats: {} if stats.lora_loads is None else {"": stats.lora_loads},
    ),
)
