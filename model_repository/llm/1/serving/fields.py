"""The fields of a request: one table for Triton's configuration, the parser and the reference page.

vllm_backend's names come first; those of TensorRT-LLM's models, of both their generations, and of OpenAI are other
names of the same fields.

Nothing is imported but the standard library, here and in `outputs.py`: Triton reads these tables in a process that must
not wait for torch, and the model `completion` links to them.
"""

from dataclasses import dataclass
from typing import Any

from serving.outputs import OUTPUTS


@dataclass(frozen=True)
class Kind:
    """What the value of a field is, and how Triton sends it."""

    about: str
    data_type: str | None
    """Of the input tensor; None: there is none, and the field is for JSON and request parameters alone."""
    dims: tuple[int, ...] = (1,)


TEXT = Kind("text", "TYPE_STRING")
NAME = Kind("text of 1 to 256 characters", "TYPE_STRING")
TEXTS = Kind("texts", "TYPE_STRING", (-1,))
WORDS = Kind("texts; empty ones do not count", "TYPE_STRING", (-1,))
FILES = Kind("files as base64", "TYPE_STRING", (-1,))
INTEGER = Kind("whole number", "TYPE_INT32")
LOGPROBS = Kind("whole number; false: none", None)
INTEGERS = Kind("whole numbers", "TYPE_INT32", (-1,))
SEED = Kind("whole number from 0 to 2^64 - 1", "TYPE_UINT64")
NUMBER = Kind("number", "TYPE_FP32")
EMBEDS = Kind("rows of numbers", "TYPE_FP32", (-1, -1))
HALF_EMBEDS = Kind("rows of numbers", "TYPE_FP16", (-1, -1))
TRUTH = Kind("true or false", "TYPE_BOOL")
WHICH_RESPONSES = Kind('true, false or "last"', "TYPE_BOOL")
PROMPT_PARTS = Kind('true, false or "ids"', "TYPE_BOOL")
EARLY_STOPPING = Kind('true, false or "never"', "TYPE_BOOL")
JSON_LIST = Kind("JSON list, or text that holds one", "TYPE_STRING")
JSON_OBJECT = Kind("JSON object, or text that holds one", "TYPE_STRING")
TOKEN_LISTS = Kind("JSON list of lists of token ids", None)
TOKEN_WEIGHTS = Kind("JSON object of token ids and numbers", None)
MICROSECONDS = Kind("whole number", None)
DOCUMENT = Kind("JSON, also as text", "TYPE_STRING")
HEADER = Kind("text", None)
SIDE = Kind('"left" or "right"', None)


@dataclass(frozen=True)
class Field:
    """One field of a request."""

    name: str
    """That in `SamplingParams` or `RequestOptions` where the field is one of theirs."""
    kind: Kind
    about: str = ""
    """What it means; empty where the docstring in `SamplingParams` or `RequestOptions` says it."""
    also: tuple[str, ...] = ()
    """Other names of it."""
    not_inputs: tuple[str, ...] = ()
    """Names for JSON and request parameters alone: Triton refuses numbers as text where a name is an input tensor."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that a client may use, the field's own first."""
        return (self.name, *self.also)

    def inputs(self) -> list[dict[str, Any]]:
        """The field's input tensors, as Triton's `ModelConfig.add_input` takes them."""
        if self.kind.data_type is None:
            return []
        tensor = {"data_type": self.kind.data_type, "dims": list(self.kind.dims), "optional": True}
        return [{"name": name, **tensor} for name in self.names if name not in self.not_inputs]


SAMPLING_PARAMETERS = Field("sampling_parameters", TEXT, "A JSON object of any of the other fields.")

GROUPS: dict[str, tuple[Field, ...]] = {
    "Prompt": (
        Field(
            "text_input", TEXT, "The prompt as text. Exactly one of the first four fields of this table is required."
        ),
        Field("messages", TEXT, "The prompt as a JSON list of chat messages, for the model's chat template."),
        Field("input_ids", INTEGERS, "The prompt as token ids."),
        Field(
            "image",
            FILES,
            "The images of the prompt, as in vllm_backend: files in PNG, JPEG, WebP, GIF or BMP, one for each place in "
            "the prompt, in order. Their places are the model's own placeholders in a text, and parts of the type "
            "`image` in `messages`.",
        ),
        Field(
            "prompt_embeds",
            EMBEDS,
            "Embeddings in place of tokens of the prompt, one row each, where `enable_prompt_embeds` is set. Alone, "
            "they are the prompt. In `text_input`, a mark is [their "
            "place](../images.md#embeddings-in-place-of-tokens). In `input_ids`, the size of the vocabulary plus a "
            "row's number stands for the row, as in TensorRT-LLM.",
        ),
        Field("prompt_embedding_table", HALF_EMBEDS, "The same in half precision; TensorRT-LLM's name."),
        Field("prompt_vocab_size", INTEGER, "The number of these rows, as in TensorRT-LLM. It may be left out."),
        Field(
            "truncate_prompt_tokens",
            INTEGER,
            "As in vLLM: of a longer prompt, keep only so many tokens at its end; -1: as many as leave room for "
            "`max_tokens`. Not with `messages`.",
        ),
        Field(
            "truncation_side",
            SIDE,
            "As in vLLM: where `truncate_prompt_tokens` cuts. Right: keep the first tokens. Default: left.",
        ),
        Field(
            "embedding_request",
            TEXT,
            'JSON with a prompt to embed, as in vllm_backend: `{"input": text or token ids, "pooling_params": '
            '{"dimensions": 256, "pooling": "mean", "normalize": true}}`. Or with a prompt '
            '[to classify](../requests.md#classes-and-scores): `{"input": {"query": text, "document": text}, '
            '"pooling_params": {"task": "classify", "use_activation": true}}`. The input may also be a list of '
            "messages. An empty `text_input` may come with it.",
        ),
        Field(
            "tools",
            JSON_LIST,
            "The tools that the chat template shows to the model, as OpenAI has them. Only with `messages`.",
        ),
        Field(
            "chat_template_kwargs",
            JSON_OBJECT,
            "Variables for the chat template, such as `enable_thinking`. Only with messages, or with a query "
            "and a document.",
        ),
        Field(
            "add_generation_prompt",
            TRUTH,
            "Begin the assistant's next message after the last one. Default: true, unless `continue_final_message` is. "
            "Only with `messages`.",
        ),
        Field(
            "continue_final_message",
            TRUTH,
            "Continue the last message, which is the assistant's, in place of beginning a new one. Only with "
            "`messages`.",
        ),
    ),
    "Length and end": (
        Field("max_tokens", INTEGER, also=("max_completion_tokens",), not_inputs=("max_completion_tokens",)),
        Field("min_tokens", INTEGER, also=("min_length",)),
        Field("stop", WORDS, also=("stop_words",)),
        Field("include_stop_str_in_output", TRUTH),
        Field("stop_token_ids", INTEGERS),
        Field("ignore_eos", TRUTH),
        Field(
            "end_id",
            INTEGER,
            "The only token that ends the output, in place of the model's own. -1, or a token outside the vocabulary: "
            "none does.",
        ),
    ),
    "Sampling": (
        Field("temperature", NUMBER),
        Field("top_k", INTEGER),
        Field("top_p", NUMBER),
        Field("min_p", NUMBER),
        Field("repetition_penalty", NUMBER),
        Field("presence_penalty", NUMBER),
        Field("frequency_penalty", NUMBER),
        Field("bad_words", WORDS),
        Field("bad_words_ids", TOKEN_LISTS),
        Field("logit_bias", TOKEN_WEIGHTS),
        Field("allowed_token_ids", INTEGERS),
        Field("seed", SEED, also=("random_seed",)),
        Field(
            "n",
            INTEGER,
            "Samples of the prompt, at most 16. They share the blocks of the prompt. Default: 1. In a beam search: how "
            "many of the best outputs to return. Default: all.",
            also=("num_return_sequences",),
            not_inputs=("n",),
        ),
    ),
    "Structured output": (
        Field(
            "structured_outputs",
            DOCUMENT,
            "An object as in vLLM; [its keys](#keys-of-structured_outputs) are in a table below. Other keys may be "
            "null or false. `guided_decoding` is its name in older releases of vllm_backend.",
            also=("guided_decoding",),
            not_inputs=("guided_decoding",),
        ),
        Field(
            "response_format", DOCUMENT, "OpenAI's object: `text`, `json_object`, `json_schema` or `structural_tag`."
        ),
        Field("guided_json", DOCUMENT, "A JSON schema, as in older releases of vLLM."),
        Field("guided_regex", TEXT, "A regular expression, as in older releases of vLLM."),
        Field("guided_choice", TEXTS, "The texts to choose from, as in older releases of vLLM."),
        Field("guided_grammar", TEXT, "A grammar, as in older releases of vLLM."),
        Field(
            "guided_decoding_guide_type",
            TEXT,
            "`json`, `json_schema`, `regex`, `ebnf_grammar` or `structural_tag`, as in TensorRT-LLM.",
        ),
        Field("guided_decoding_guide", TEXT, "The schema, the expression, the grammar or the tag."),
    ),
    "Answer": (
        Field("stream", TRUTH, "Send text as it appears. Otherwise one response holds the whole answer."),
        Field(
            "exclude_input_in_output",
            TRUTH,
            "Leave the prompt out of `text_output`. As in vllm_backend, a whole answer begins with the prompt unless "
            "this is true, and a streamed answer never does. Default: the setting of this name.",
        ),
        Field(
            "return_finish_reason",
            WHICH_RESPONSES,
            'Add the output `finish_reason`: true in every response, "last" only in responses that end a sample. An '
            "input tensor takes true and false alone.",
        ),
        Field("return_stop_reason", TRUTH, "Add the output `stop_reason` to the responses that end a sample."),
        Field("skip_special_tokens", TRUTH),
        Field("logprobs", LOGPROBS),
        Field(
            "return_logprobs", TRUTH, "Add the output `logprobs`, which is `null` unless the field `logprobs` is given."
        ),
        Field("logprob_token_ids", INTEGERS),
        Field("prompt_logprobs", INTEGER, not_inputs=("prompt_logprobs",)),
        Field(
            "return_prompt_logprobs",
            TRUTH,
            "Add the output `prompt_logprobs`, which is `null` unless the field `prompt_logprobs` is given.",
        ),
        Field(
            "return_prompt",
            PROMPT_PARTS,
            'Add the output `prompt`: true with its text, token ids and tokens, "ids" with its token ids alone, which '
            "costs less. An input tensor takes true and false alone.",
        ),
        Field(
            "return_embedding",
            TRUTH,
            "Send an embedding, or the probabilities of classes, as the output `embedding`, and leave `text_output` "
            "empty.",
        ),
        Field("return_cumulative_logprob", TRUTH, "Add the output `cumulative_logprob`."),
        Field("return_log_probs", TRUTH, "Add TensorRT-LLM's outputs `cum_log_probs` and `output_log_probs`."),
        Field("return_num_input_tokens", TRUTH, "Add the output `num_input_tokens`."),
        Field("return_num_output_tokens", TRUTH, "Add the output `num_output_tokens`."),
        Field(
            "return_num_cached_tokens",
            TRUTH,
            "Add the output `num_cached_tokens` to the first and the last response.",
        ),
        Field("return_token_ids", TRUTH, "Add the output `token_ids`."),
        Field("return_usage", TRUTH, "Add the output `usage` to the first and the last response."),
        Field(
            "return_perf_metrics",
            TRUTH,
            "Add TensorRT-LLM's outputs about drafts, reused blocks and times, `acceptance_rate` and those after it, "
            "to the last response.",
        ),
    ),
    "Queue and limits": (
        Field("priority", INTEGER),
        Field("tenant", NAME),
        Field("request_class", NAME, also=("x-request-class",), not_inputs=("x-request-class",)),
        Field("timeout", MICROSECONDS),
        Field("deadline_ms", INTEGER),
        Field("target_ttft_ms", INTEGER),
        Field("cache_salt", NAME),
        Field("client_request_id", NAME, also=("x-request-id",), not_inputs=("x-request-id",)),
    ),
    "Tracing": (
        Field(
            "traceparent",
            HEADER,
            "The caller's OpenTelemetry context, as in the HTTP header of this name (W3C Trace Context). The request's "
            "spans become children of it. An invalid one is ignored. Where Triton itself traces the request by "
            "OpenTelemetry, Triton's span is the parent.",
        ),
        Field("tracestate", HEADER, "The header that may come with `traceparent`."),
    ),
    "LoRA adapters": (Field("lora_name", NAME),),
    "Speculative decoding": (
        Field("draft_input_ids", INTEGERS),
        Field("num_speculative_tokens", INTEGER),
    ),
    "Disaggregated prefill": (
        Field(
            "kv_transfer_params",
            JSON_OBJECT,
            "What the request wants of another server, as in vLLM. `do_remote_decode`: this prompt goes on elsewhere; "
            "the output `kv_transfer_params` says how. `do_remote_prefill`: this prompt was computed elsewhere; the "
            "other keys are those of that output. Only where `kv_transfer_config` has a role.",
        ),
    ),
    "Beam search": (
        Field("beam_width", INTEGER),
        Field(
            "use_beam_search",
            TRUTH,
            "As in vLLM: the number of beams is `beam_width`, or else `best_of`, or else `n`.",
        ),
        Field(
            "best_of",
            INTEGER,
            "The number of beams with `use_beam_search`. Otherwise taken where it is 1 or equal to `n`.",
            not_inputs=("best_of",),
        ),
        Field("length_penalty", NUMBER),
        Field("early_stopping", EARLY_STOPPING),
        Field("pad_id", INTEGER, "Taken and ignored: nothing is padded."),
    ),
}
"""All fields but `sampling_parameters`, under the headings of the reference page."""

FIELDS = tuple(field for group in GROUPS.values() for field in group)


def add_tensors(config: Any, *, without: str | None = None) -> Any:
    """Give a `pb_utils.ModelConfig` all inputs but the one named, and all outputs; returns it."""
    for field in (SAMPLING_PARAMETERS, *FIELDS):
        for tensor in field.inputs():
            if tensor["name"] != without:
                config.add_input(tensor)
    for output in OUTPUTS:
        config.add_output({"name": output.name, "data_type": output.data_type, "dims": list(output.dims)})
    return config
