"""Converts the parameters of config.pbtxt into the settings of the engine and of the server around it."""

import dataclasses
import json
import os
import sys
import types
import typing
from collections.abc import Mapping

from inflight import EngineConfig
from inflight.scheduler.queue_policy import read_policies
from serving.server_config import ServerConfig

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_JSON = (
    *("priority_queue_policy", "tenant_weights", "request_classes", "speculative_config"),
    *("kv_events_config", "kv_transfer_config", "lora_modules"),
)
_JSON_LISTS = ("classifier_from_token",)
_PATHS = ("model", "tokenizer", "lora_folder", "kv_offloading_path", "trace_file")
# Parameters that Triton's Python backend reads itself.
_NOT_OURS = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"})


def read_settings(parameters: Mapping[str, str]) -> tuple[EngineConfig, ServerConfig]:
    """Return the settings that the `parameters` of config.pbtxt give. An empty value counts as not given.

    Raises:
        ValueError: a parameter is unknown, missing or has an invalid value; the message names it.
    """
    values = read_values(parameters, EngineConfig, ServerConfig)
    engine = {field.name for field in dataclasses.fields(EngineConfig)}
    return (
        EngineConfig(**{key: value for key, value in values.items() if key in engine}),
        ServerConfig(**{key: value for key, value in values.items() if key not in engine}),
    )


def read_values(parameters: Mapping[str, str], *settings: type) -> dict[str, typing.Any]:
    """Return the values that `parameters` give to the fields of dataclasses. Raises what `read_settings` raises."""
    hints = {name: hint for each in settings for name, hint in typing.get_type_hints(each).items()}
    given = {key: text.strip() for key, text in parameters.items() if key not in _NOT_OURS and text.strip()}
    unknown = sorted(given.keys() - hints.keys())
    if unknown:
        raise ValueError(
            f"config.pbtxt has unknown parameters {', '.join(unknown)}; known are {', '.join(sorted(hints))}"
        )
    for name in (name for each in settings for name in _required(each)):
        if name not in given:
            raise ValueError(f"config.pbtxt lacks the parameter {name}")
    return {key: _value(key, text, hints[key]) for key, text in given.items()}


def check_tensors(model_config: Mapping[str, typing.Any]) -> None:
    """Check that Triton has called the model's `auto_complete_config`.

    Raises:
        ValueError: the configuration has no inputs or no outputs.
    """
    if not model_config["input"] or not model_config["output"]:
        raise ValueError(
            f"the configuration of {model_config['name']} has no inputs or no outputs; the model adds them itself, so "
            "start tritonserver without --disable-auto-complete-config"
        )


def on_device_of_instance(config: EngineConfig, kind: str, device_id: str) -> EngineConfig:
    """Return the settings of one model instance, on the device that Triton's `instance_group` gives it.

    With `KIND_MODEL` the parameter `device` decides. With `KIND_GPU` each instance has its own engine on its own GPU.
    With `KIND_CPU` all instances share the CPU.

    A model that is divided over GPUs needs `KIND_MODEL`.

    Raises:
        ValueError: both `instance_group` and the parameter `device` name a device, or `KIND_GPU` gives one GPU to a
            model that is divided over several.
    """
    if kind not in ("GPU", "CPU"):
        return config
    if kind == "GPU" and config.tensor_parallel_size > 1:
        raise ValueError(
            f"parameter tensor_parallel_size is {config.tensor_parallel_size}, and instance_group says KIND_GPU, which "
            "gives each instance one GPU; it must say KIND_MODEL"
        )
    if config.device != "auto":
        raise ValueError(
            f"parameter device is {config.device!r}, and instance_group says KIND_{kind}; "
            "give one of them (KIND_MODEL leaves it to the parameter)"
        )
    return dataclasses.replace(config, device=f"cuda:{device_id}" if kind == "GPU" else "cpu")


def _required(settings: typing.Any) -> list[str]:
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(settings) if f.default is missing and f.default_factory is missing]


def _value(name: str, text: str, hint: object) -> typing.Any:
    if name in _JSON:
        decoded = _json(name, text, dict)
        return read_policies(decoded) if name == "priority_queue_policy" else decoded
    if name in _JSON_LISTS:
        return _json(name, text, list)
    if name in _PATHS:
        _check_path(name, text)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(k for k in kinds if k is not type(None))
    try:
        return _TRUTHS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"parameter {name} is {text!r}; it must be of type {kind.__name__}") from None


def _check_path(name: str, text: str) -> None:
    """Python says of a path that it cannot encode that there is no such file."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError(
            f"parameter {name} is {text!r}; Triton's Python takes only {sys.getfilesystemencoding()} in paths; make a "
            "link to it whose path has no other characters"
        ) from None


def _json(name: str, text: str, kind: type) -> typing.Any:
    try:
        decoded = json.loads(text)
    except ValueError as error:
        raise ValueError(f"parameter {name} is not valid JSON: {error}") from None
    if not isinstance(decoded, kind):
        raise ValueError(f"parameter {name} is {text!r}; it must be a JSON {'object' if kind is dict else 'list'}")
    return decoded
