"""What is known of a model before its weights are read."""

from dataclasses import dataclass, replace

from transformers import AutoConfig, PreTrainedConfig

from inflight.config import EngineConfig
from inflight.model.loading import support
from inflight.model.loading.checkpoint import Checkpoint
from inflight.model.loading.classification_head import is_classifier
from inflight.model.loading.config_errors import reason
from inflight.model.loading.quantized_checkpoint.prepare import prepare


@dataclass(frozen=True)
class Description:
    """A model whose config does not speak against the settings."""

    checkpoint: Checkpoint
    settings: EngineConfig
    """They name the folder of the checkpoint."""
    config: PreTrainedConfig
    is_quantized: bool
    """Whether the weights are quantized. Then they become ordinary ones while they are loaded."""


def describe(settings: EngineConfig) -> Description:
    """Find a model, read its config, and check whether it can be served with these settings.

    Raises:
        UnsupportedModel: It cannot. The message says why.
        ValueError: Its files cannot be read.
    """
    checkpoint = Checkpoint.of(settings.model, settings.revision)
    settings = replace(settings, model=str(checkpoint.folder))
    config = _hf_config(settings)
    support.check_config(config)
    support.check_settings(config, settings)
    if settings.classifier_from_token and is_classifier(config):
        raise ValueError("classifier_from_token is given, but the model has a head that classifies")
    return Description(checkpoint, settings, config, prepare(settings, config))


def _hf_config(config: EngineConfig) -> PreTrainedConfig:
    try:
        hf_config: PreTrainedConfig = AutoConfig.from_pretrained(
            config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except Exception as error:
        # Configs check and convert their fields by all kinds of code.
        raise ValueError(
            f"model is {config.model!r}; its config cannot be read: {reason(config.model, error)}"
        ) from error
    for part in (hf_config, *(getattr(hf_config, name, None) for name in hf_config.sub_configs)):
        if part is not None:
            part.return_dict = True  # `generate` asks for it in each call, whatever the config says.
    return hf_config
