"""Reads the files of a LoRA adapter in the format of the library PEFT."""

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from inflight.errors import UnsupportedModel
from inflight.lora.lora_folder import CONFIG, WEIGHTS
from inflight.model.loading.checkpoint import check_readable, hub_folder

logger = logging.getLogger(__name__)

_KEY = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<part>[AB])\.weight")
_PART = re.compile(r"\.lora_[AB]\.")
_OTHER_WEIGHTS = "adapter_model.bin"
"""What older versions of PEFT wrote."""
_UNSUPPORTED = (
    *("use_dora", "lora_bias", "modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters"),
    *("alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "megatron_config"),
)
"""Options of PEFT that change what an adapter computes, where they are set."""
_MOST_ALPHA = 1e6
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the model's own weights, which a server does not know."""


@dataclass(frozen=True)
class LayerDelta:
    """The change of one linear layer: the output for an input x gets `up @ (down @ x)` more."""

    down: torch.Tensor
    """[rank, inputs] float32, LoRA's A."""
    up: torch.Tensor
    """[outputs, rank] float32, LoRA's B times the scale."""


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter's change of each layer, by the layer's name in the model."""

    layers: Mapping[str, LayerDelta]
    digest: str
    """See `Adapter`."""
    where: str
    """What names it, to begin messages with."""

    def rank(self, layer: str) -> int:
        """Return its rank in a layer; 0 if it does not change it."""
        return len(self.layers[layer].down) if layer in self.layers else 0


def read_named_adapter(name: str, folder: str) -> AdapterWeights:
    """Read the adapter that `lora_modules` calls `name`, from a local folder or the hub.

    Raises:
        UnsupportedModel, ValueError: see `read_adapter`.
    """
    where = f"lora_modules[{name!r}] is {folder!r}"
    try:
        files, commit = _files(folder)
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}; it cannot be read: {error}") from error
    if commit is not None:
        logger.info("adapter %s is at commit %s", name, commit)
    return read_adapter(files, where)


def read_adapter(files: Path, where: str) -> AdapterWeights:
    """Read the adapter in a local folder. Messages begin with `where`.

    Raises:
        UnsupportedModel: it is another kind of adapter, or changes more than linear layers.
        ValueError: its files cannot be read.
    """
    try:
        _check_files(files)
        config = json.loads((files / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(files / WEIGHTS)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        # Clients may read this, and are not told where the files are.
        reason = error.strerror or type(error).__name__ if isinstance(error, OSError) else error
        raise ValueError(f"{where}; it cannot be read: {reason}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{where}; its {CONFIG} is not a JSON object")
    _check_config(where, config)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None and _PART.search(key):
            raise UnsupportedModel(
                f"{where}; it has {key}, and names must be those that PEFT saves: base_model.model.LAYER.lora_A.weight"
            )
        if match is None:
            raise UnsupportedModel(f"{where}; it changes {key}, and only the weights of linear layers are supported")
        parts.setdefault(match["layer"], {})[match["part"]] = tensor
    if not parts:
        raise ValueError(f"{where}; it has no weights")
    layers = {layer: _delta(where, layer, pair, config) for layer, pair in sorted(parts.items())}
    return AdapterWeights(layers, _digest(layers), where)


def _files(folder: str) -> tuple[Path, str | None]:
    """Return the folder of an adapter's files, and the commit if it is from the hub."""
    path = Path(folder).expanduser()
    if path.is_dir():
        check_readable(path)
        return path, None
    if folder.startswith((".", "/", "~")):
        raise OSError("there is no such folder")
    path = hub_folder(folder, "main", (CONFIG, WEIGHTS))
    check_readable(path)
    return path, path.name


def _check_files(files: Path) -> None:
    if lacking := [name for name in (CONFIG, WEIGHTS) if not (files / name).is_file()]:
        found = f", but {_OTHER_WEIGHTS}, which is not read" if (files / _OTHER_WEIGHTS).is_file() else ""
        raise ValueError(f"it has no {lacking[0]}{found}")


def _check_config(where: str, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise UnsupportedModel(f"{where}; its peft_type is {config.get('peft_type')!r}, and only LORA is supported")
    if config.get("bias", "none") != "none":
        raise UnsupportedModel(f"{where}; its bias is {config['bias']!r}, and only 'none' is supported")
    if given := [option for option in _UNSUPPORTED if config.get(option)]:
        raise UnsupportedModel(f"{where}; it uses {', '.join(given)}, which is not supported")
    initial = config.get("init_lora_weights")
    if isinstance(initial, str) and initial.startswith(_CHANGE_BASE):
        raise UnsupportedModel(
            f"{where}; its init_lora_weights is {initial!r}, which also changes the model; convert it to plain LoRA, "
            "as PEFT's save_pretrained does with path_initial_model_for_weight_conversion"
        )
    _check_alphas(where, config)


def _check_alphas(where: str, config: Mapping[str, Any]) -> None:
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise ValueError(f"{where}; its alpha_pattern is {patterns!r}; it must be an object")
    for name, alpha in {"lora_alpha": _alpha(config), **patterns}.items():
        if not isinstance(alpha, int | float) or not abs(alpha) <= _MOST_ALPHA:
            raise ValueError(
                f"{where}; its alpha is {alpha!r} by {name}; it must be a number of at most {_MOST_ALPHA:g}"
            )
    for pattern in patterns:
        try:
            re.compile(_of_layers(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{where}; its alpha_pattern has {pattern!r}, which is no regular expression: {error}"
            ) from error


def _alpha(config: Mapping[str, Any]) -> Any:
    return config.get("lora_alpha", 8)


def _of_layers(pattern: str) -> str:
    """Return what the whole name of a layer must match: the pattern is for the end of it."""
    return rf"(.*\.)?({pattern})"


def _scale(config: Mapping[str, Any], layer: str, rank: int) -> float:
    """PEFT multiplies by alpha / rank, or by alpha / sqrt(rank) with rsLoRA. Patterns set alpha for some layers."""
    patterns = config.get("alpha_pattern") or {}
    alpha = next(
        (value for pattern, value in patterns.items() if re.fullmatch(_of_layers(pattern), layer)), _alpha(config)
    )
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _delta(where: str, layer: str, pair: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> LayerDelta:
    if set(pair) != {"A", "B"}:
        raise ValueError(f"{where}; {layer} has lora_{next(iter(pair))} alone")
    down, up = pair["A"].float(), pair["B"].float()
    if down.dim() != 2 or up.dim() != 2 or down.shape[0] != up.shape[1] or not len(down):
        raise UnsupportedModel(
            f"{where}; {layer} has lora_A {list(down.shape)} and lora_B {list(up.shape)}, and only those of linear "
            "layers are supported"
        )
    if not (down.isfinite().all() and up.isfinite().all()):
        raise ValueError(f"{where}; {layer} has weights that are not numbers")
    return LayerDelta(down, up * _scale(config, layer, len(down)))


def _digest(layers: Mapping[str, LayerDelta]) -> str:
    digest = blake2b(digest_size=16)
    for layer, delta in layers.items():
        digest.update(f"{layer} {list(delta.down.shape)} {list(delta.up.shape)} ".encode())
        for tensor in (delta.down, delta.up):
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
