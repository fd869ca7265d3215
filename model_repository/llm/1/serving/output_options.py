"""Which outputs a request asks for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputOptions:
    """Which of the optional outputs a request asks for."""

    finish_reason: bool | str = False
    """True: in every response. "last": only in responses that end a sample, because each output costs time in three
    processes."""
    stop_reason: bool = False
    cumulative_logprob: bool = False
    logprobs: bool = False
    log_probs: bool = False
    """TensorRT-LLM's two outputs `cum_log_probs` and `output_log_probs`."""
    num_input_tokens: bool = False
    num_output_tokens: bool = False
    num_cached_tokens: bool = False
    prompt_logprobs: bool = False
    prompt: bool | str = False
    """True: text, token ids and tokens. "ids": token ids alone, because decoding takes 20 ms for 8,000 tokens."""
    embedding: bool = False
    token_ids: bool = False
    usage: bool = False
    perf_metrics: bool = False
    """TensorRT-LLM's outputs about the work on a request; see `perf_metrics`."""
    kv_transfer_params: bool = False
    has_logprobs: bool = False
    """Whether the request has the field `logprobs`. If not, the output `logprobs` is "null", as in vllm_backend."""
