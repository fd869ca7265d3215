"""The model repository for one run: the project's repository with some parameters of `llm` replaced."""

from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from scripts.launch.errors import LauncherError

MODEL_REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"


def render_repository(
    destination: Path,
    *,
    parameters: Mapping[str, str],
    model: str = "llm",
    source: Path = MODEL_REPOSITORY,
) -> Path:
    """Fill `destination`, which must be empty or not exist, and return it.

    The result contains every model of `source` as links to its files. Only the configurations of `model`,
    `config.pbtxt` and the variants in `configs/`, are copies, in which `parameters` replace or extend the existing
    ones. Raises LauncherError if a configuration does not parse or `source` has no such model.
    """
    if not (source / model).is_dir():
        raise LauncherError(f"{source} has no model {model!r}")
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        target = destination / folder.name
        if folder.name != model:
            destination.mkdir(parents=True, exist_ok=True)
            target.symlink_to(folder.resolve())
            continue
        target.mkdir(parents=True)
        for entry in sorted(folder.iterdir()):
            if entry.name == "config.pbtxt":
                _copy_config(entry, target / entry.name, parameters)
            elif entry.name == "configs":
                (target / "configs").mkdir()
                for variant in sorted(entry.glob("*.pbtxt")):
                    _copy_config(variant, target / "configs" / variant.name, parameters)
            else:
                (target / entry.name).symlink_to(entry.resolve())
    return destination


def model_parameters(model: str = "llm", config_file: str = "config.pbtxt") -> dict[str, str]:
    """Return the parameters in a model's configuration."""
    config = text_format.Parse((MODEL_REPOSITORY / model / config_file).read_text(), model_config_pb2.ModelConfig())
    return {name: value.string_value for name, value in config.parameters.items()}


def write_variant(target: Path, parameters: Mapping[str, str], about: str, *, model: str = "llm") -> None:
    """Write a variant of a model's configuration, for the folder `configs/`.

    `parameters` replace or extend those of `config.pbtxt`. The file begins with `about` as a comment.
    """
    _copy_config(MODEL_REPOSITORY / model / "config.pbtxt", target, parameters)
    comment = "".join(f"# {line}".rstrip() + "\n" for line in about.splitlines())
    target.write_text(comment + target.read_text())


def _copy_config(source: Path, target: Path, parameters: Mapping[str, str]) -> None:
    try:
        config = text_format.Parse(source.read_text(), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise LauncherError(f"{source}: {error}") from error
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    target.write_text(text_format.MessageToString(config))
