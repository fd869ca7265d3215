"""Parameters of config.pbtxt become engine settings."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from inflight import EngineConfig
from inflight.scheduler.queue_policy import QueuePolicy
from serving.server_config import ServerConfig
from serving.settings import on_device_of_instance, read_settings

CONFIG = Path(__file__).parents[2] / "model_repository/llm/config.pbtxt"


def engine_config(parameters: Mapping[str, str]) -> EngineConfig:
    return read_settings(parameters)[0]


def test_the_model_is_all_that_must_be_given() -> None:
    assert engine_config({"model": "some/folder"}) == EngineConfig(model="some/folder")


def test_values_are_read_as_the_settings_types() -> None:
    config = engine_config(
        {
            "model": "m",
            "dtype": "float32",
            "max_num_seqs": "8",
            "max_model_len": "100",
            "kv_cache_memory_fraction": "0.5",
            "enable_prefix_caching": "false",
        }
    )
    assert config == EngineConfig(
        model="m",
        dtype="float32",
        max_num_seqs=8,
        max_model_len=100,
        kv_cache_memory_fraction=0.5,
        enable_prefix_caching=False,
    )


@pytest.mark.parametrize(
    ("text", "truth"),
    [("true", True), ("TRUE", True), ("1", True), ("False", False), ("0", False), ("no", False)],
)
def test_truths_can_be_written_in_several_ways(text: str, truth: bool) -> None:
    assert engine_config({"model": "m", "trust_remote_code": text}).trust_remote_code is truth


def test_space_around_a_value_does_not_matter() -> None:
    assert engine_config({"model": " m\n", "max_num_seqs": " 8 "}) == EngineConfig(model="m", max_num_seqs=8)


def test_an_empty_value_counts_as_not_given() -> None:
    given = {"model": "m", "max_model_len": "", "max_num_seqs": "  "}
    assert engine_config(given) == EngineConfig(model="m")


def test_tritons_own_parameters_are_left_to_triton() -> None:
    given = {"model": "m", "EXECUTION_ENV_PATH": "/env.tar.gz", "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}
    assert engine_config(given) == EngineConfig(model="m")


@pytest.mark.parametrize("given", [{}, {"model": ""}, {"max_num_seqs": "8"}])
def test_a_missing_model_is_named(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=re.escape("config.pbtxt lacks the parameter model")):
        engine_config(given)


def test_unknown_parameters_are_named_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match=r"unknown parameters max_seqs, zebra; known are allow_timeout_override, .*block_size,.*trust_remote_code",
    ):
        engine_config({"model": "m", "zebra": "1", "max_seqs": "4"})


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("max_num_seqs", "many", "int"),
        ("max_num_seqs", "1.5", "int"),
        ("max_model_len", "none", "int"),
        ("kv_cache_memory_fraction", "half", "float"),
        ("enable_prefix_caching", "maybe", "bool"),
    ],
)
def test_a_value_of_another_type_is_named(name: str, text: str, kind: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"parameter {name} is '{text}'; it must be of type {kind}")):
        engine_config({"model": "m", name: text})


PATHS = """
from serving.settings import read_settings

for name in ("model", "tokenizer", "lora_folder", "kv_offloading_path", "trace_file"):
    try:
        read_settings({"model": "m", name: "/jos\\u00e9/files"})
    except ValueError as error:
        print(ascii(str(error)))
"""


def test_paths_that_python_cannot_encode_are_named() -> None:
    """Triton embeds a Python that starts with ASCII as the encoding of paths."""
    environment = {
        **{"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]},
        **{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    }
    command = [sys.executable, "-c", PATHS]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 5
    assert "parameter model is '/jos\\xe9/files'; Triton's Python takes only ascii in paths" in said[0]
    assert "parameter trace_file is" in said[-1]


def test_a_value_out_of_bounds_is_named() -> None:
    with pytest.raises(ValueError, match="max_num_seqs is 0; it must be at least 1"):
        engine_config({"model": "m", "max_num_seqs": "0"})


def test_the_parameters_that_we_ship_are_known() -> None:
    pairs = re.findall(r'^ *\{ key: "(\w+)" value: \{ string_value: "(.*?)" \}', CONFIG.read_text(), re.MULTILINE)
    assert pairs
    assert engine_config(dict(pairs)).model
    assert read_settings(dict(pairs))[1].max_inflight_requests is None, "execute() blocks by default"


def test_policies_of_single_levels_are_read_from_json() -> None:
    given = {"model": "m", "priority_levels": "2", "default_priority_level": "2"}
    policies = '{"1": {"max_queue_size": 10, "timeout_action": "DELAY"}}'
    config = engine_config(given | {"priority_queue_policy": policies})
    assert config.priority_queue_policy == {1: QueuePolicy(max_queue_size=10, timeout_action="DELAY")}


def test_tokens_are_read_from_a_json_list() -> None:
    given = {"model": "m", "classifier_from_token": '["no", "yes"]'}
    assert engine_config(given).classifier_from_token == ["no", "yes"]
    with pytest.raises(ValueError, match="parameter classifier_from_token is '\"yes\"'; it must be a JSON list"):
        engine_config(given | {"classifier_from_token": '"yes"'})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "parameter priority_queue_policy is not valid JSON"),
        ("[1]", "parameter priority_queue_policy is '[1]'; it must be a JSON object"),
        ('{"high": {}}', "priority_queue_policy has level 'high'; levels are whole numbers from 1"),
        ('{"1": 10}', "priority_queue_policy of level 1 is 10; it must be an object"),
        ('{"1": {"size": 1}}', "priority_queue_policy of level 1 has unknown fields size; known are max_queue_size"),
        ('{"1": {"max_queue_size": -1}}', "level 1: max_queue_size is -1; it must be at least 0"),
        ('{"1": {"timeout_action": "DROP"}}', "level 1: timeout_action is 'DROP'; it must be REJECT or DELAY"),
        ('{"1": {"allow_timeout_override": 1}}', "level 1: allow_timeout_override is 1; it must be true or false"),
        ('{"1": {"max_queue_size": 9999}}', "level 1: max_queue_size is 9999; it must not be over that of the engine"),
        ('{"3": {}}', "priority_queue_policy has level 3; priority_levels is 2"),
        ('{"0": {}}', "priority_queue_policy has level 0; priority_levels is 2"),
    ],
)
def test_a_malformed_policy_is_named(text: str, says: str) -> None:
    given = {"model": "m", "priority_levels": "2", "default_priority_level": "1", "priority_queue_policy": text}
    with pytest.raises(ValueError, match=re.escape(says)):
        engine_config(given)


def test_the_servers_own_settings_are_read_too() -> None:
    assert read_settings({"model": "m", "max_inflight_requests": "4"})[1] == ServerConfig(max_inflight_requests=4)
    with pytest.raises(ValueError, match="max_inflight_requests is 0; it must be at least 1"):
        read_settings({"model": "m", "max_inflight_requests": "0"})
    assert read_settings({"model": "m", "stream_interval": "4"})[1] == ServerConfig(stream_interval=4)
    with pytest.raises(ValueError, match="stream_interval is 0; it must be at least 1"):
        read_settings({"model": "m", "stream_interval": "0"})


def test_settings_for_a_model_that_dies() -> None:
    given = {"model": "m", "on_model_death": "none", "step_timeout_seconds": "1.5"}
    assert read_settings(given)[1] == ServerConfig(on_model_death="none", step_timeout_seconds=1.5)
    with pytest.raises(ValueError, match="on_model_death is 'restart'; it must be exit or none"):
        read_settings({"model": "m", "on_model_death": "restart"})
    for seconds in ("0.5", "nan"):
        with pytest.raises(ValueError, match=f"step_timeout_seconds is {seconds}; it must be at least 1"):
            read_settings({"model": "m", "step_timeout_seconds": seconds})


@pytest.mark.parametrize(
    ("kind", "device_id", "given", "device"),
    [
        ("GPU", "1", "auto", "cuda:1"),
        ("CPU", "0", "auto", "cpu"),
        ("MODEL", "0", "auto", "auto"),
        ("MODEL", "0", "cuda:1", "cuda:1"),
    ],
)
def test_an_instance_is_on_the_device_that_triton_gives_it(kind: str, device_id: str, given: str, device: str) -> None:
    config = on_device_of_instance(EngineConfig("m", device=given), kind, device_id)
    assert config == EngineConfig("m", device=device)


@pytest.mark.parametrize("kind", ["GPU", "CPU"])
def test_two_devices_for_an_instance_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=f"parameter device is 'cuda:1', and instance_group says KIND_{kind}"):
        on_device_of_instance(EngineConfig("m", device="cuda:1"), kind, "0")


def test_a_gpu_for_each_instance_is_refused_where_a_model_is_divided_over_several() -> None:
    config = EngineConfig("m", tensor_parallel_size=2)
    with pytest.raises(ValueError, match="tensor_parallel_size is 2, and instance_group says KIND_GPU"):
        on_device_of_instance(config, "GPU", "0")
    assert on_device_of_instance(config, "CPU", "0").device == "cpu"
    assert on_device_of_instance(config, "MODEL", "0") == config
