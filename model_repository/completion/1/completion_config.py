"""Settings of this model, one frozen dataclass."""

from dataclasses import dataclass

from serving.server_config import EXIT, check_on_model_death


@dataclass(frozen=True)
class CompletionConfig:
    """What the parameters of config.pbtxt say.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    max_concurrent_requests: int
    max_queued_requests: int
    llm_has_batch_dimension: bool = False
    generation_model_name: str = "llm"
    context_model_name: str = ""
    on_model_death: str = EXIT

    def __post_init__(self) -> None:
        for name, least in (("max_concurrent_requests", 1), ("max_queued_requests", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        check_on_model_death(self.on_model_death)
