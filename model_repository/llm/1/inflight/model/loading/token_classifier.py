"""Makes a head that classifies of the output head of a model for text: how likely does it answer yes, not no?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inflight.classifier import SIGMOID, Classifier
from inflight.errors import UnsupportedModel
from inflight.model.head import head

# With states so large, logits are far beyond any cap.
_STATE_SIZE = 100.0
_TOLERANCE = 0.02
"""Of the largest logit. The head may compute in bfloat16."""


def classifier_of_tokens(module: Any, tokenizer: Any | None, tokens: Sequence[str], *, has_head: bool) -> Classifier:
    """Return a classifier with one class: the last of `tokens`, against the other one if there are two.

    `has_head` says whether the weights of the output head are those of the checkpoint.

    Raises:
        UnsupportedModel: There is no output head, or its logits are no linear function of the hidden states.
        ValueError: The vocabulary lacks a token.
    """
    ids = _token_ids(tokenizer, tokens)
    layer = module.get_output_embeddings() if has_head else None
    if layer is None:
        raise UnsupportedModel("classifier_from_token is given, but the model's weights have no output head")
    weight = layer.weight[ids].float().cpu().numpy()
    bias = np.zeros(len(ids), np.float32) if layer.bias is None else layer.bias[ids].float().cpu().numpy()
    _check(module, ids, weight, bias)
    if len(ids) == 2:
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    return Classifier(weight=weight, bias=bias, labels=(tokens[-1],), activation=SIGMOID, pad_token_id=None)


def _token_ids(tokenizer: Any | None, tokens: Sequence[str]) -> list[int]:
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    for token in tokens:
        if token not in vocabulary:
            raise ValueError(f"classifier_from_token has {token!r}, which is no token of the model's tokenizer")
    return [vocabulary[token] for token in tokens]


def _check(module: Any, ids: list[int], weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]) -> None:
    states = _STATE_SIZE * torch.randn((1, weight.shape[1]), generator=torch.Generator().manual_seed(0))
    states = states.to(module.dtype)
    with torch.inference_mode():
        theirs = head(module, states.to(module.device))[0, ids].float().cpu().numpy()
    ours = weight @ states[0].float().numpy() + bias
    if not np.allclose(theirs, ours, rtol=0, atol=_TOLERANCE * np.abs(ours).max()):
        raise UnsupportedModel(
            f"classifier_from_token is given, but the head of {type(module).__name__} does more than one linear layer"
        )
