"""Loads the head of a checkpoint that classifies, such as those of the architecture Qwen3ForSequenceClassification.

All but the head is the same as in the model that generates, and is loaded and checked as that.
"""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from inflight.classifier import SIGMOID, SOFTMAX, Classifier
from inflight.errors import UnsupportedModel
from inflight.model.head import head

_KIND = "ForSequenceClassification"
_WEIGHT, _BIAS = "score.weight", "score.bias"
HEAD_WEIGHTS = frozenset({_WEIGHT, _BIAS})
"""The names of the weights of such a head."""
_CHECKED_STATES = 3
_OF_TORCH = {"Identity": None, "Sigmoid": SIGMOID, "Softmax": SOFTMAX}


def is_classifier(config: PreTrainedConfig) -> bool:
    """Whether a checkpoint classifies, by its architecture."""
    return any(name.endswith(_KIND) for name in config.architectures or ())


def load_classifier(config: PreTrainedConfig, files: Iterable[Path]) -> Classifier:
    """Load the head from the files of the weights, and compare what it computes with transformers' own.

    Raises:
        UnsupportedModel: The head is not one linear layer, which reads the last token.
        ValueError: The weights lack it, or it has another shape than the config says.
    """
    module = _module(config)
    weights = _read(files, module.score.state_dict(prefix="score."))
    module.score.load_state_dict({name.removeprefix("score."): each for name, each in weights.items()}, assign=True)
    weight = weights[_WEIGHT].numpy()
    found = Classifier(
        weight=weight,
        bias=weights[_BIAS].numpy() if _BIAS in weights else np.zeros(len(weight), np.float32),
        labels=tuple(str(name) for _, name in sorted((config.id2label or {}).items())),
        activation=_activation(config),
        pad_token_id=config.get_text_config().pad_token_id,
    )
    states = torch.randn((_CHECKED_STATES, weight.shape[1]), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        theirs = head(module, states).numpy()
    ours = found.values(states[-1].double().numpy(), activated=False)
    if theirs.shape != ours.shape or not np.allclose(theirs, ours, rtol=1e-4, atol=1e-4 * np.abs(ours).max()):
        raise UnsupportedModel(f"the head of {type(module).__name__} is no linear layer that reads the last token")
    return found


def _module(config: PreTrainedConfig) -> Any:
    """Return transformers' module without weights. The tokens of `head`, which are 0, are no padding to it."""
    kind: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
    if kind is None or kind.__name__ not in (config.architectures or ()):
        raise UnsupportedModel(f"transformers has no {' or '.join(config.architectures or ())}")
    config = copy.deepcopy(config)
    config.get_text_config().pad_token_id = 1
    with torch.device("meta"):
        module = kind._from_config(config, dtype=torch.float32, attn_implementation="eager")
    own = {name for name in module.state_dict() if not name.startswith(f"{kind.base_model_prefix}.")}
    if not {_WEIGHT} <= own <= HEAD_WEIGHTS:
        raise UnsupportedModel(
            f"the head of {kind.__name__} has {', '.join(sorted(own))}; it must have {_WEIGHT} alone"
        )
    return module.eval()


def _read(files: Iterable[Path], wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            found |= {name: opened.get_tensor(name).float() for name in wanted.keys() & set(opened.keys())}
    for name, tensor in wanted.items():
        if name not in found:
            raise ValueError(f"its weights lack {name}, the head that classifies")
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"{name} has the shape {list(found[name].shape)} in its weights and {list(tensor.shape)} by its config"
            )
    return found


def _activation(config: PreTrainedConfig) -> str | None:
    """Return what sentence-transformers applies to the logits if it trained the model, else transformers' pipeline."""
    trained = getattr(config, "sentence_transformers", None) or {}
    named = trained.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None) or ""
    if (kind := named.rpartition(".")[2]) in _OF_TORCH:
        return _OF_TORCH[kind]
    if config.problem_type == "regression":
        return None
    return SIGMOID if config.problem_type == "multi_label_classification" or config.num_labels == 1 else SOFTMAX
