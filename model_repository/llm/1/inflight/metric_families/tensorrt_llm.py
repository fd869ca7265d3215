"""Metrics by the names of TensorRT-LLM's backend, which Triton and Kubernetes read."""

from inflight.metric_families.family import GAUGE, Family

TENSORRT_LLM = (
    Family(
        "nv_trt_llm_kv_cache_block_metrics",
        GAUGE,
        "Blocks of the KV cache, in the form of TensorRT-LLM's backend: `max`, `used`, `free`, tokens per block, and "
        "the used fraction. From release 25.04 on, Triton builds the ORCA header `endpoint-load-metrics` from it.",
        label="kv_cache_block_type",
        read=lambda s: {
            "max": s.blocks_total,
            "used": s.blocks_used,
            "free": s.blocks_free,
            "tokens_per": s.block_size,
            "fraction": s.blocks_used * 1024 // s.blocks_total / 1024,
        },
        is_live=True,
    ),
    Family(
        "nv_trt_llm_request_metrics",
        GAUGE,
        "Requests, in the form of TensorRT-LLM's backend: `waiting` to be admitted, and `scheduled`, which run. "
        "Kubernetes' endpoint pickers read it.",
        label="request_type",
        read=lambda s: {"waiting": s.waiting, "scheduled": s.running},
        is_live=True,
    ),
)
