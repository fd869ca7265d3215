"""The options with which a measurement takes another model than the default one."""

import argparse
from pathlib import Path

from scripts.launch.default_model import NAME, default_model
from scripts.launch.errors import LauncherError
from scripts.shapes import SHAPES, shape_folder


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add `--model` and `--shape`. One of them at most can be given."""
    add = parser.add_mutually_exclusive_group().add_argument
    add("--model", type=Path, metavar="FOLDER", help=f"a Hugging Face folder, instead of {NAME}")
    add("--shape", choices=SHAPES, help="random weights in the shape of this model, with the default vocabulary")


def model_folder(options: argparse.Namespace) -> Path:
    """The folder of the chosen model. Raises LauncherError if it is no model, or what `default_model` raises."""
    if options.shape is not None:
        return shape_folder(options.shape)
    if options.model is None:
        return default_model()
    folder: Path = options.model.expanduser().resolve()
    if not (folder / "config.json").is_file():
        raise LauncherError(f"--model is {options.model}; that folder has no config.json")
    return folder


def model_name(options: argparse.Namespace) -> str:
    """The name of the chosen model in reports."""
    if options.shape is not None:
        return f"{options.shape}, random weights"
    return NAME if options.model is None else options.model.expanduser().resolve().name
