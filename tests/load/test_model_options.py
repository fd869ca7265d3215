"""Which model a measurement takes."""

import argparse
from pathlib import Path

import pytest

from load_tests.model_options import add_model_options, model_folder, model_name
from scripts.launch.default_model import NAME, default_model
from scripts.launch.errors import LauncherError


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    return parser.parse_args(arguments)


def test_without_options_it_is_the_default_model() -> None:
    assert model_folder(options()) == default_model()
    assert model_name(options()) == NAME


def test_a_folder_is_named_by_its_last_part(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    given = options("--model", f"{tmp_path}/")
    assert model_folder(given) == tmp_path
    assert model_name(given) == tmp_path.name


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=f"--model is {tmp_path}; that folder has no config.json"):
        model_folder(options("--model", str(tmp_path)))


@pytest.mark.parametrize("arguments", [("--shape", "llama-2b"), ("--shape", "llama-1b", "--model", ".")])
def test_unknown_shapes_and_two_models_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        options(*arguments)


def test_a_shape_has_its_name() -> None:
    assert model_name(options("--shape", "llama-1b")) == "llama-1b, random weights"
