"""Engine settings are checked when they are made."""

import math
import re
from typing import Any

import pytest

from inflight import EngineConfig
from inflight.scheduler.queue_policy import QueuePolicy

COUNTS = [
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "max_queue_size",
    "max_model_len",
    "kv_cache_tokens",
]


def refused(says: str, **fields: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        EngineConfig(model="m", **fields)


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("field", COUNTS)
def test_counts_begin_at_one(field: str, value: int) -> None:
    refused(f"{field} is {value}; it must be at least 1", **{field: value})


@pytest.mark.parametrize("field", [name for name in COUNTS if name != "kv_cache_tokens"])
def test_one_is_enough(field: str) -> None:
    assert getattr(EngineConfig(model="m", **{field: 1}), field) == 1


def test_the_cache_holds_a_block_at_least() -> None:
    assert EngineConfig(model="m", kv_cache_tokens=16, block_size=16).kv_cache_tokens == 16
    refused("kv_cache_tokens is 15; it must hold one block of 16 tokens", kv_cache_tokens=15, block_size=16)


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan])
def test_the_share_of_memory_lies_between_nothing_and_all(value: float) -> None:
    refused(f"kv_cache_memory_fraction is {value}; it must lie between 0 and 1", kv_cache_memory_fraction=value)


def test_the_dtype_is_one_that_is_known() -> None:
    refused("dtype is 'float8'; it must be one of auto, float32, bfloat16, float16", dtype="float8")


@pytest.mark.parametrize("value", ["8", 1.5, math.nan, True])
@pytest.mark.parametrize("field", COUNTS)
def test_counts_are_whole_numbers(field: str, value: object) -> None:
    refused(f"{field} is {value!r}; it must be", **{field: value})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"priority_levels": -1}, "priority_levels is -1; it must be at least 0"),
        ({"priority_levels": "2"}, "priority_levels is '2'; it must be a whole number"),
        ({"priority_levels": 2}, "default_priority_level is 0; it must be from 1 to priority_levels, 2"),
        (
            {"priority_levels": 2, "default_priority_level": 3},
            "default_priority_level is 3; it must be from 1 to priority_levels, 2",
        ),
        ({"default_priority_level": 1}, "default_priority_level is 1; it must be 0, as priority_levels is 0"),
        ({"default_timeout_microseconds": -5}, "default_timeout_microseconds is -5; it must be at least 0"),
        ({"timeout_action": "reject"}, "timeout_action is 'reject'; it must be REJECT or DELAY"),
        ({"allow_timeout_override": "yes"}, "allow_timeout_override is 'yes'; it must be true or false"),
        ({"priority_queue_policy": {1: QueuePolicy()}}, "priority_queue_policy has level 1; priority_levels is 0"),
    ],
)
def test_queue_policies_must_make_sense(fields: dict[str, Any], says: str) -> None:
    refused(says, **fields)


def test_the_defaults_fit() -> None:
    config = EngineConfig(model="m")
    assert (config.dtype, config.device, config.max_num_seqs, config.max_num_batched_tokens) == (
        "auto",
        "auto",
        64,
        512,
    )
    assert config.enable_prefix_caching
