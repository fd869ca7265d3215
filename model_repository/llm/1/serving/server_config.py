"""Settings of the Triton side, one frozen dataclass."""

from dataclasses import dataclass

EXIT, NONE = "exit", "none"
OWN_FORMAT, TENSORRT_LLM, TENSORRT_LLM_ENSEMBLE = "own", "tensorrt_llm", "tensorrt_llm_ensemble"
_FORMATS = (OWN_FORMAT, TENSORRT_LLM, TENSORRT_LLM_ENSEMBLE)


@dataclass(frozen=True)
class ServerConfig:
    """Settings of one model instance's server.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    max_inflight_requests: int | None = None
    """Maximum number of requests in the engine. While it is reached, `execute()` blocks, and further requests wait
    in Triton's queue under the policies of `dynamic_batching`. Default: `execute()` never blocks."""

    stream_interval: int = 1
    """Number of tokens that a stream sends in one response, as in vLLM. The first and the last token are never held
    back. Fewer responses leave more CPU time to a model that runs on the same cores."""

    exclude_input_in_output: bool = False
    """Whether whole answers leave out the prompt where the request does not say, as in TensorRT-LLM's models. Triton's
    OpenAI frontend needs it when it sends chats as to these models."""

    vllm_metric_names: bool = False
    """Whether the metrics that vLLM has too appear a second time by its names, `vllm:...`, with its labels
    `model_name` and `engine`. For dashboards and routers that know vLLM."""

    request_format: str = OWN_FORMAT
    """`own`: the inputs and outputs of the reference page. `tensorrt_llm`: those of TensorRT-LLM's model of this name,
    with token ids in place of texts. For its ensembles, and for clients with a tokenizer of their own.
    `tensorrt_llm_ensemble`: those of the reference page, in the shapes that the clients of its models `ensemble` and
    `tensorrt_llm_bls` expect: `text_output` has no batch dimension, and a request that names the output
    `sequence_index` gets separate responses for each sample."""

    step_timeout_seconds: float = 300.0
    """Longest time that a step may take. After that the engine counts as standing still: every request gets an error,
    and the model's process ends. Raise it for a large model on a slow processor, or for steps of many tokens."""

    on_model_death: str = EXIT
    """`exit`: when the model's process has died, tritonserver is ended too, so that clients get an error at once and
    the server can be started again. `none`: tritonserver goes on without this model. Use `none` where the server has
    other models that are worth more than this one."""

    def __post_init__(self) -> None:
        if self.max_inflight_requests is not None and self.max_inflight_requests < 1:
            raise ValueError(f"max_inflight_requests is {self.max_inflight_requests}; it must be at least 1")
        if self.stream_interval < 1:
            raise ValueError(f"stream_interval is {self.stream_interval}; it must be at least 1")
        # The comparison is also false for a value that is not a number.
        if not self.step_timeout_seconds >= 1:
            raise ValueError(f"step_timeout_seconds is {self.step_timeout_seconds}; it must be at least 1")
        if self.request_format not in _FORMATS:
            raise ValueError(f"request_format is {self.request_format!r}; it must be one of {', '.join(_FORMATS)}")
        check_on_model_death(self.on_model_death)


def check_on_model_death(value: str) -> None:
    """Raises ValueError unless the value is one of the two."""
    if value not in (EXIT, NONE):
        raise ValueError(f"on_model_death is {value!r}; it must be {EXIT} or {NONE}")
