"""The repository of a run differs from the project's only in the requested parameters."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import render_repository


def read_config(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def test_parameters_are_replaced_and_added(repository: Path, tmp_path: Path) -> None:
    original = (repository / "llm/config.pbtxt").read_text()
    parameters = {"model": '/models/a "quoted" one', "dtype": "float32"}
    rendered = render_repository(tmp_path / "rendered", parameters=parameters, source=repository)
    config = read_config(rendered / "llm/config.pbtxt")
    values = {name: parameter.string_value for name, parameter in config.parameters.items()}
    assert values == {**parameters, "kept": "as it was"}

    expected = read_config(repository / "llm/config.pbtxt")
    for each in (config, expected):
        each.ClearField("parameters")
    assert config == expected
    assert (repository / "llm/config.pbtxt").read_text() == original


def test_the_rest_is_linked(repository: Path, tmp_path: Path) -> None:
    (repository / "completion/1").mkdir(parents=True)
    (repository / "completion/config.pbtxt").write_text("")
    rendered = render_repository(tmp_path / "rendered", parameters={}, source=repository)
    assert (rendered / "llm/1").resolve() == repository / "llm/1"
    assert (rendered / "completion/1").resolve() == repository / "completion/1"


def test_variants_of_the_configuration_get_the_parameters_too(repository: Path, tmp_path: Path) -> None:
    variants = repository / "llm/configs"
    variants.mkdir()
    (variants / "latency.pbtxt").write_text((repository / "llm/config.pbtxt").read_text())
    rendered = render_repository(tmp_path / "rendered", parameters={"model": "other"}, source=repository)
    config = read_config(rendered / "llm/configs/latency.pbtxt")
    assert config.parameters["model"].string_value == "other"


def test_a_configuration_that_does_not_parse_is_named(repository: Path, tmp_path: Path) -> None:
    (repository / "llm/config.pbtxt").write_text("no_such_field: 1")
    with pytest.raises(LauncherError, match=r"llm/config\.pbtxt.*no_such_field"):
        render_repository(tmp_path / "rendered", parameters={}, source=repository)


def test_a_model_that_is_not_there_is_named(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="no model 'other'"):
        render_repository(tmp_path / "rendered", parameters={}, model="other", source=repository)
