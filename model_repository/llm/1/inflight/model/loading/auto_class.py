"""Chooses by which of transformers' automatic classes a model is loaded."""

from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING


def auto_class(config: PreTrainedConfig) -> Any:
    """Return the class that loads a decoder with this config.

    Models that also read images or sounds have a class of their own unless transformers has one for their text alone.
    """
    kind = type(config)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING and kind in MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM
