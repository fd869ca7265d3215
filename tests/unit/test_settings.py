"""Parameters of config.pbtxt become engine settings."""

import re
from pathlib import Path

import pytest

from inflight import EngineConfig
from serving.settings import engine_config

CONFIG = Path(__file__).parents[2] / "model_repository/llm/config.pbtxt"


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
        ValueError, match=r"unknown parameters max_seqs, zebra; known are block_size, .*trust_remote_code"
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


def test_a_value_out_of_bounds_is_named() -> None:
    with pytest.raises(ValueError, match="max_num_seqs is 0; it must be at least 1"):
        engine_config({"model": "m", "max_num_seqs": "0"})


def test_the_parameters_that_we_ship_are_known() -> None:
    pairs = re.findall(r'key: "(\w+)" value: \{ string_value: "(.*?)" \}', CONFIG.read_text())
    assert pairs
    assert engine_config(dict(pairs)).model
