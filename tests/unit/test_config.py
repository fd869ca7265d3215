"""Engine settings are checked when they are made."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from inflight import EngineConfig
from inflight.scheduler.queue_policy import QueuePolicies, QueuePolicy
from inflight.speculation.speculative_config import SpeculativeConfig
from tests.unit.builders import make_scheduler

COUNTS = [
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "max_queue_size",
    "max_queue_tokens",
    "max_model_len",
    "num_threads",
    "kv_cache_tokens",
    "tensor_parallel_size",
    "nnodes",
    "master_port",
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


def test_one_or_two_tokens_classify() -> None:
    assert EngineConfig(model="m", classifier_from_token=["no", "yes"]).classifier_from_token == ["no", "yes"]
    refused("classifier_from_token is ['a', 'b', 'c']; it must be a list of one or", classifier_from_token=list("abc"))
    refused("classifier_from_token is [5]; it must be a list of one or two tokens", classifier_from_token=[5])
    refused("classifier_from_token is 'a'; it must be a list of one or two tokens", classifier_from_token="a")
    refused("classifier_from_token is given, and tensor", classifier_from_token=["a"], tensor_parallel_size=2)


def test_adapters_have_names_and_folders() -> None:
    assert EngineConfig(model="m", lora_modules={"sql": "/adapters/sql"}).lora_modules == {"sql": "/adapters/sql"}
    refused("lora_modules['a'] is 5; it must be a folder or a hub id", lora_modules={"a": 5})
    refused("lora_modules['a'] is ''; it must be a folder or a hub id", lora_modules={"a": ""})
    refused("lora_modules has a name of 0 characters; it must have 1 to 256", lora_modules={"": "/a"})
    refused("lora_modules has 257 adapters; it must have at most 256", lora_modules={str(i): "/a" for i in range(257)})
    role = {"kv_role": "kv_both"}
    refused(
        "lora_modules is given, and kv_transfer_config has a kv_role", lora_modules={"a": "/a"}, kv_transfer_config=role
    )


def test_the_quantization_is_one_that_is_known() -> None:
    refused("quantization is 'int2'; it must be int8 or int4, or not given", quantization="int2")


@pytest.mark.parametrize("value", ["8", 1.5, math.nan, True])
@pytest.mark.parametrize("field", COUNTS)
def test_counts_are_whole_numbers(field: str, value: object) -> None:
    refused(f"{field} is {value!r}; it must be", **{field: value})


@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("batching_strategy", "continuous, static, dynamic, bucketed"),
        ("scheduling_policy", "fcfs, sjf, priority, fair, slo, classes"),
        ("length_predictor", "tenant, template, ranker, hidden_state"),
        ("batch_scheduler_policy", "max_utilization, guaranteed_no_evict, future_peak"),
        ("preemption_mode", "recompute, swap, auto"),
        ("token_budget", "fixed, adaptive"),
    ],
)
def test_choices_are_named(field: str, known: str) -> None:
    refused(f"{field} is 'best'; it must be one of {known}", **{field: "best"})
    swap = {"swap_space_tokens": 1} if field == "preemption_mode" else {}
    for choice in known.split(", "):
        classes = {"request_classes": {"all": {}}} if choice == "classes" else {}
        assert getattr(EngineConfig(model="m", **{field: choice}, **swap, **classes), field) == choice


NIGHT = {"leftover": True}


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ({"a": 3}, "request_classes of 'a' is 3; it must be an object"),
        ({"": {}}, "request_classes has a class without a name"),
        ({"a": {"weight": 1}}, "request_classes of 'a' has 'weight'; it may have tenants, priorities, policy, share, "),
        ({"a": {"tenants": "b"}}, "request_classes of 'a': tenants is 'b'; it must be a list of texts"),
        ({"a": {"priorities": [True]}}, "request_classes of 'a': priorities is [True]; it must be a list of whole num"),
        (
            {"a": {"policy": "priority"}},
            "request_classes of 'a': policy is 'priority'; it must be one of fcfs, sjf, ",
        ),
        ({"a": {"share": 0}}, "request_classes of 'a': share is 0; it must be a finite number over 0"),
        ({"a": {"share": math.inf}}, "request_classes of 'a': share is inf; it must be a finite number over 0"),
        ({"a": {"leftover": 1}}, "request_classes of 'a': leftover is 1; it must be true or false"),
        ({"a": {"min_share": 0.1}}, "request_classes of 'a': min_share is 0.1; it must be 0 unless leftover is true"),
        ({"a": {**NIGHT, "min_share": 1}}, "request_classes of 'a': min_share is 1; it must be a number from 0 to bel"),
        (
            {"a": {"target_ttft_ms": 0}},
            "request_classes of 'a': target_ttft_ms is 0; it must be a finite number ov",
        ),
        ({"a": {"target_itl_ms": "9"}}, "request_classes of 'a': target_itl_ms is '9'; it must be a finite number ove"),
        ({"a": {**NIGHT, "target_itl_ms": 9}}, "request_classes of 'a': target_itl_ms is 9; it must be left out wher"),
        ({"a": NIGHT}, "request_classes has leftover classes alone; it must have another one, whose rest they get"),
        (
            {"a": {}, "b": {**NIGHT, "min_share": 0.5}, "c": {**NIGHT, "min_share": 0.5}},
            "request_classes: min_share is 1.0 in all classes together; it must be below 1",
        ),
        ({"a": {"tenants": ["x"]}, "b": {"tenants": ["x"]}}, "request_classes: 'x' is in tenants of 'a' and of 'b'"),
        ({str(n): {} for n in range(17)}, "request_classes has 17 classes; it must have at most 16"),
        ({}, "scheduling_policy is 'classes' and request_classes has 0 classes; the policy 'classes' needs at least"),
    ],
)
def test_classes_must_make_sense(classes: dict[str, Any], says: str) -> None:
    refused(says, scheduling_policy="classes", request_classes=classes)


def test_classes_go_with_their_policy_and_leftover_ones_with_mixed_steps() -> None:
    refused("scheduling_policy is 'fcfs' and request_classes has 1 classes; the", request_classes={"a": {}})
    says = "request_classes of 'b': leftover is true; batching_strategy must be 'continuous' and enable_chunked_prefill"
    for fields in ({"batching_strategy": "static"}, {"enable_chunked_prefill": False}):
        refused(says, scheduling_policy="classes", request_classes={"a": {}, "b": NIGHT}, **fields)


@pytest.mark.parametrize("value", [-1, 1.5, "8", True])
@pytest.mark.parametrize("field", ["swap_space_tokens", "max_num_partial_prefills", "long_prefill_token_threshold"])
def test_counts_that_may_be_zero_are_not_less(field: str, value: object) -> None:
    assert getattr(EngineConfig(model="m", **{field: 0}), field) == 0
    says = "at least 0" if value == -1 else "a whole number"
    refused(f"{field} is {value!r}; it must be {says}", **{field: value})


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
@pytest.mark.parametrize(
    "field", ["batch_wait_ms", "sjf_ageing", "priority_ageing_seconds", "scheduler_delay_factor", "arrival_forecast_ms"]
)
def test_numbers_that_may_be_zero_are_finite(field: str, value: float) -> None:
    assert getattr(EngineConfig(model="m", **{field: 0}), field) == 0
    refused(f"{field} is {value}; it must be finite and at least 0", **{field: value})
    refused(f"{field} is 'x'; it must be a number", **{field: "x"})


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["target_ttft_ms", "target_itl_ms"])
def test_targets_lie_over_zero(field: str, value: float) -> None:
    refused(f"{field} is {value}; it must be finite and over 0", **{field: value})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tenant_weights": {"a": 1, "b": 0}}, "tenant_weights of 'b' is 0; it must be finite and over 0"),
        ({"tenant_weights": {"b": "2"}}, "tenant_weights of 'b' is '2'; it must be a number"),
        (
            {"tenant_weights": {str(n): 1.0 for n in range(10_001)}},
            "tenant_weights has 10001 tenants; it must have at most 10000",
        ),
        ({"preemption_mode": "swap"}, "preemption_mode is 'swap'; kv_offloading_size or swap_space_tokens must"),
        ({"preemption_mode": "auto"}, "preemption_mode is 'auto'; kv_offloading_size or swap_space_tokens must"),
    ],
)
def test_tenants_and_swapping_must_make_sense(fields: dict[str, Any], says: str) -> None:
    refused(says, **fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kv_offloading_size": -1.0}, "kv_offloading_size is -1.0; it must be"),
        ({"kv_offloading_disk_size": 0.0}, "kv_offloading_disk_size is 0.0; it must be"),
        (
            {"kv_offloading_size": 1.0, "swap_space_tokens": 16},
            "kv_offloading_size is 1.0 and swap_space_tokens is 16; both are the size of the same memory",
        ),
        (
            {"kv_offloading_path": "/kv", "enable_prefix_caching": False},
            "kv_offloading_path is given, but enable_prefix_caching is false",
        ),
    ],
)
def test_offloading_must_make_sense(fields: dict[str, Any], says: str) -> None:
    refused(says, **fields)


def test_preempted_requests_may_go_to_the_memory_for_prefixes() -> None:
    assert EngineConfig(model="tiny", kv_offloading_size=1.0, preemption_mode="swap").has_host_memory


@pytest.mark.parametrize(
    ("policy", "levels", "says"),
    [
        ("priority", 0, "scheduling_policy is 'priority'; priority_levels is 0, it must be at least 2"),
        ("priority", 1, "scheduling_policy is 'priority'; priority_levels is 1, it must be at least 2"),
        ("fair", 2, "scheduling_policy is 'fair', which knows tenants; priority_levels is 2, not 0"),
    ],
)
def test_policies_and_levels_must_go_together(policy: str, levels: int, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        make_scheduler(scheduling_policy=policy, policies=QueuePolicies(QueuePolicy(), levels, min(levels, 1)))


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


def test_the_model_folder_may_be_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert EngineConfig(model="~/model").model == "/somewhere/model"
    assert EngineConfig(model=Path("~/model")).model == "/somewhere/model"  # type: ignore[arg-type]
    assert EngineConfig(model="owner/model~").model == "owner/model~"


def test_a_model_in_speculative_config_is_a_draft_model_as_in_vllm() -> None:
    assert SpeculativeConfig.of({"model": "small"}).method == "draft_model"
    with pytest.raises(ValueError, match="method is 'ngram' and model is 'small'"):
        SpeculativeConfig.of({"model": "small", "method": "ngram"})


def test_the_defaults_fit() -> None:
    config = EngineConfig(model="m")
    assert (config.dtype, config.device, config.max_num_seqs, config.max_num_batched_tokens) == (
        "auto",
        "auto",
        64,
        512,
    )
    assert config.enable_prefix_caching


def test_what_only_one_process_does_is_refused_with_several() -> None:
    draft = {"method": "draft_model", "model": "small"}
    says = "speculative_config names a model that drafts, and tensor_parallel_size is 2; it must be 1"
    refused(says, tensor_parallel_size=2, speculative_config=draft)
    refused("device is 'cuda:1', and tensor_parallel_size is 2", tensor_parallel_size=2, device="cuda:1")
    EngineConfig(model="m", tensor_parallel_size=2, speculative_config={"method": "ngram"})


def test_each_machine_has_as_many_ranks() -> None:
    refused("tensor_parallel_size is 3 and nnodes is 2; the first must be", tensor_parallel_size=3, nnodes=2)
    refused("tensor_parallel_size is 1 and nnodes is 2; the first must be", nnodes=2)
    refused("master_port is 65536; it must be at most 65535", master_port=65536)
    assert EngineConfig(model="m", tensor_parallel_size=6, nnodes=2).ranks_per_machine == 3
