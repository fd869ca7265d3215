"""The settings of an engine that is simulated, from the command line."""

import argparse
import json
from dataclasses import fields

from inflight.config import EngineConfig
from inflight.scheduler.scheduler_config import SchedulerConfig
from serving.settings import read_settings

MOST_CACHE_TOKENS = 100_000_000
"""The bookkeeping of so many takes 0.3 GB."""
_OF_CACHE_AND_QUEUE = {
    "allow_timeout_override",
    "block_size",
    "default_priority_level",
    "default_timeout_microseconds",
    "enable_prefix_caching",
    "kv_cache_tokens",
    "max_model_len",
    "max_queue_size",
    "max_queue_tokens",
    "prefix_caching_per_tenant",
    "priority_levels",
    "priority_queue_policy",
    "timeout_action",
}
_KNOWN = {field.name for field in fields(EngineConfig)}
_SIMULATED = {field.name for field in fields(SchedulerConfig)} | _OF_CACHE_AND_QUEUE
"""The settings that change what is simulated. The others are of a model, a machine or a server."""


def read_setting(text: str) -> tuple[str, list[str]]:
    """Parse a setting and its values, `name=value,value`, as in config.pbtxt. Values may be JSON objects."""
    name, equals, values = text.partition("=")
    if not equals:
        raise ValueError(f"setting {text!r}: must be NAME=VALUE")
    try:
        return name, [json.dumps(value) for value in json.loads(f"[{values}]")] if "{" in values else values.split(",")
    except ValueError as error:
        raise ValueError(f"{name} is {values!r}, which is not valid JSON: {error}") from None


def configured(options: argparse.Namespace, requests: int, **more: str) -> EngineConfig:
    """The settings of the command line, for so many requests. All settings are text, as in config.pbtxt.

    Raises:
        ValueError: a setting is unknown, is not simulated, or has an invalid value; the message names it.
    """
    given = {
        "kv_cache_tokens": str(options.kv_cache_tokens),
        "enable_prefix_caching": str(options.prefix_tokens > 0),
        "max_queue_size": str(requests),
        "target_ttft_ms": str(1e3 * options.slo_ttft),
        "target_itl_ms": str(1e3 * options.slo_itl),
        "price_per_hour": str(options.price_per_hour or 0.0),
    }
    if options.acceptance is not None:
        given["speculative_config"] = json.dumps({"num_speculative_tokens": options.drafted})
    for text in options.set:
        name, values = read_setting(text)
        if len(values) > 1:
            raise ValueError(f"--set {text}: {name} has {len(values)} values; --compare tries several")
        given |= {name: values[0]}
    given |= more
    if unknown := sorted(given.keys() - _KNOWN):
        raise ValueError(f"unknown settings {', '.join(unknown)}; known are {', '.join(sorted(_SIMULATED))}")
    if useless := sorted(given.keys() - _SIMULATED):
        raise ValueError(
            f"{', '.join(useless)}: the simulator has no model and no machine, so this would change nothing; "
            f"it applies {', '.join(sorted(_SIMULATED))}"
        )
    config = read_settings({"model": "simulated", **given})[0]
    if config.length_predictor == "hidden_state":
        raise ValueError("length_predictor is 'hidden_state'; the simulator has no model whose states could be read")
    if (config.kv_cache_tokens or 0) > MOST_CACHE_TOKENS:
        raise ValueError(f"kv_cache_tokens is {config.kv_cache_tokens}; it must be at most {MOST_CACHE_TOKENS}")
    return config
