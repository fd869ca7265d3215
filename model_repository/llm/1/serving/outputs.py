"""The output tensors of a response: one table for Triton's configuration and the reference page. See `fields.py`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Output:
    """One output tensor of a response."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    about: str


OUTPUTS = (
    Output(
        "text_output",
        "TYPE_STRING",
        (-1,),
        "Streaming: the text that is new, always whole characters. Otherwise the whole text. For an embedding or a "
        "classification: a JSON list of its numbers.",
    ),
    Output(
        "finish_reason",
        "TYPE_STRING",
        (-1,),
        "`stop`, `length` or `deadline` where the sample has ended; `None` where it goes on.",
    ),
    Output(
        "stop_reason",
        "TYPE_STRING",
        (-1,),
        "What has ended the sample: a stop string, as JSON, or a token of `stop_token_ids`; otherwise `null`.",
    ),
    Output("cumulative_logprob", "TYPE_FP32", (-1,), "The sum of the log-probabilities of all tokens so far."),
    Output(
        "logprobs",
        "TYPE_STRING",
        (-1,),
        "A JSON list with an object for each new token: `{token id: {logprob, rank, decoded_token}}`.",
    ),
    Output(
        "prompt_logprobs",
        "TYPE_STRING",
        (1,),
        "A JSON list with an object for each token of the prompt, as in `logprobs`. The first one is `null`. It is in "
        "the response with the first output token, or in the last one.",
    ),
    Output(
        "prompt",
        "TYPE_STRING",
        (1,),
        "The prompt as the model read it, chat template included, in the same response: a JSON object with its `text`, "
        "its `token_ids`, and the text of each of its `tokens`.",
    ),
    Output(
        "kv_transfer_params",
        "TYPE_STRING",
        (1,),
        "What the request that continues this prompt on another server is to bring, if this one asks for "
        "`do_remote_decode`: a JSON object, or `null` if that server has to compute the prompt itself. It is in the "
        "same response as `prompt`.",
    ),
    Output("embedding", "TYPE_FP32", (-1,), "The embedding of the prompt, or the probabilities of its classes."),
    Output("cum_log_probs", "TYPE_FP32", (-1,), "TensorRT-LLM's name of `cumulative_logprob`."),
    Output("output_log_probs", "TYPE_FP32", (-1, -1), "The log-probability of each new token."),
    Output("num_input_tokens", "TYPE_UINT32", (1,), "Tokens of the prompt."),
    Output("num_output_tokens", "TYPE_UINT32", (-1,), "New tokens in this response."),
    Output("num_cached_tokens", "TYPE_UINT32", (1,), "Tokens of the prompt that were in the prefix cache."),
    Output("token_ids", "TYPE_INT32", (-1, -1), "New tokens in this response, padded with -1."),
    Output("usage", "TYPE_UINT32", (2,), "Tokens of the prompt, and tokens of all samples so far."),
    Output(
        "acceptance_rate",
        "TYPE_FP32",
        (-1,),
        "The share of the drafted tokens that were right; 0 if none were drafted.",
    ),
    Output("total_accepted_draft_tokens", "TYPE_INT32", (-1,), "Drafted tokens that were right."),
    Output("total_draft_tokens", "TYPE_INT32", (-1,), "Drafted tokens that went through the model."),
    Output("kv_cache_reused_blocks", "TYPE_INT32", (-1,), "Whole blocks of the prompt that were in the prefix cache."),
    Output(
        "arrival_time_ns",
        "TYPE_INT64",
        (-1,),
        "When the request arrived: nanoseconds on the server's monotonic clock, which says nothing about the time of "
        "day. The next three are on the same clock, and 0 where there is nothing to tell.",
    ),
    Output("first_scheduled_time_ns", "TYPE_INT64", (-1,), "When its first step began."),
    Output("first_token_time_ns", "TYPE_INT64", (-1,), "When its first token was known."),
    Output("last_token_time_ns", "TYPE_INT64", (-1,), "When its last token was known."),
)
"""Each has an element for each of `n` samples, but for those of the prompt, and `usage`."""
