"""The scheduler, the cache's bookkeeping and the text can be used, and tested, without torch and ZMQ."""

import subprocess
import sys

import pytest

TORCH_FREE = [
    "inflight",
    "inflight.core",
    "inflight.cpu_count",
    "inflight.generation_defaults",
    "inflight.guided_decoding.token_masks",
    "inflight.guided_decoding.grammars",
    "inflight.host_memory",
    "inflight.kv_cache.block_events",
    "inflight.kv_cache.block_hash",
    "inflight.kv_cache.block_pool",
    "inflight.kv_cache.block_tables",
    "inflight.kv_events.factory",
    "inflight.kv_events.kv_events_config",
    "inflight.kv_transfer.connector",
    "inflight.lora.adapter",
    "inflight.lora.lora_modules",
    "inflight.metric_families.families",
    "inflight.metrics",
    "inflight.outputs",
    "inflight.phases",
    "inflight.scheduler.plan",
    "inflight.scheduler.scheduler",
    "inflight.text.chat",
    "inflight.text.detokenizer",
    "inflight.text.stop_strings",
    "inflight.trace",
    "inflight.tracing",
    "serving.settings",
    "serving.values",
]


def test_the_core_imports_no_large_library() -> None:
    code = f"""
import importlib, sys
sys.path[:0] = {sys.path!r}
for name in {TORCH_FREE!r}:
    importlib.import_module(name)
print(sorted({{"torch", "transformers", "opentelemetry", "zmq", "msgspec"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_knows_its_public_names_without_importing_them() -> None:
    import inflight
    from inflight.request_output import RequestOutput

    assert inflight.RequestOutput is RequestOutput
    assert "Engine" in inflight.__all__
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        inflight.Motor  # noqa: B018
