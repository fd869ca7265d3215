"""An ensemble with the models and the tensors of TensorRT-LLM's, around `llm` in the place of its `tensorrt_llm`.

The models before and after it are our own, with the names, types and shapes of NVIDIA's.
"""

import textwrap
from pathlib import Path

PREPROCESSING = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """Turns texts into tokens."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self._tokenizer = Tokenizer.from_file(f"{parameters['tokenizer_dir']['string_value']}/tokenizer.json")

    def execute(self, requests):
        return [pb_utils.InferenceResponse(self._outputs(request)) for request in requests]

    def _outputs(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        ids = self._encode(given["QUERY"][0, 0])
        outputs = {
            # Filled up, as the rows of a batch are.
            "INPUT_ID": np.array([[*ids, 0, 0]], np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(ids)]], np.int32),
            "DECODER_INPUT_ID": np.zeros((1, 1), np.int32),
            "REQUEST_DECODER_INPUT_LEN": np.ones((1, 1), np.int32),
            "REQUEST_OUTPUT_LEN": given["REQUEST_OUTPUT_LEN"],
            "STOP_WORDS_IDS": self._words(given.get("STOP_WORDS_DICT")),
            "BAD_WORDS_IDS": self._words(given.get("BAD_WORDS_DICT")),
            "EMBEDDING_BIAS": self._bias(given),
            "OUT_END_ID": np.array([[self._tokenizer.token_to_id("<|im_end|>")]], np.int32),
            "OUT_PAD_ID": np.zeros((1, 1), np.int32),
        }
        return [pb_utils.Tensor(name, array) for name, array in outputs.items()]

    def _encode(self, text):
        return self._tokenizer.encode(text.decode(), add_special_tokens=False).ids

    def _words(self, words):
        if words is None:
            return np.empty((1, 2, 0), np.int32)
        encoded = [self._encode(word) for word in words[0]]
        tokens = [token for word in encoded for token in word]
        ends = np.cumsum([len(word) for word in encoded]).tolist()
        return np.array([[tokens, ends + [-1] * (len(tokens) - len(ends))]], np.int32)

    def _bias(self, given):
        if "EMBEDDING_BIAS_WORDS" not in given:
            return np.empty((1, 0), np.float32)
        bias = np.zeros((1, self._tokenizer.get_vocab_size()), np.float32)
        for word, weight in zip(given["EMBEDDING_BIAS_WORDS"][0], given["EMBEDDING_BIAS_WEIGHTS"][0]):
            bias[0, self._encode(word)] += weight
        return bias
'''

POSTPROCESSING = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """Turns tokens into texts, one for each beam."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self._tokenizer = Tokenizer.from_file(f"{parameters['tokenizer_dir']['string_value']}/tokenizer.json")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self._texts(request)]) for request in requests]

    def _texts(self, request):
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
        texts = [
            self._tokenizer.decode(row[:length].tolist()).encode()
            for row, length in zip(tokens[0], lengths[0])
        ]
        return pb_utils.Tensor("OUTPUT", np.array(texts, dtype=np.object_))
'''

OPTIONAL = {
    "bad_words": ("STRING", "-1"),
    "stop_words": ("STRING", "-1"),
    "exclude_input_in_output": ("BOOL", "1"),
    "top_k": ("INT32", "1"),
    "top_p": ("FP32", "1"),
    "temperature": ("FP32", "1"),
    "length_penalty": ("FP32", "1"),
    "repetition_penalty": ("FP32", "1"),
    "min_tokens": ("INT32", "1"),
    "presence_penalty": ("FP32", "1"),
    "frequency_penalty": ("FP32", "1"),
    "seed": ("UINT64", "1"),
    "return_log_probs": ("BOOL", "1"),
    "return_context_logits": ("BOOL", "1"),
    "return_generation_logits": ("BOOL", "1"),
    "return_perf_metrics": ("BOOL", "1"),
    "return_num_input_tokens": ("BOOL", "1"),
    "return_num_output_tokens": ("BOOL", "1"),
    "num_return_sequences": ("INT32", "1"),
    "beam_width": ("INT32", "1"),
    "stream": ("BOOL", "1"),
    "prompt_embedding_table": ("FP16", "-1, -1"),
    "prompt_vocab_size": ("INT32", "1"),
    "embedding_bias_words": ("STRING", "-1"),
    "embedding_bias_weights": ("FP32", "-1"),
    "lora_task_id": ("UINT64", "1"),
    "lora_weights": ("FP16", "-1, -1"),
    "lora_config": ("INT32", "-1, 3"),
    "guided_decoding_guide_type": ("STRING", "1"),
    "guided_decoding_guide": ("STRING", "1"),
}
OUTPUTS = {
    "cum_log_probs": ("FP32", "-1"),
    "output_log_probs": ("FP32", "-1, -1"),
    "context_logits": ("FP32", "-1, -1"),
    "generation_logits": ("FP32", "-1, -1, -1"),
    "batch_index": ("INT32", "1"),
    "sequence_index": ("INT32", "1"),
    "kv_cache_alloc_new_blocks": ("INT32", "1"),
    "kv_cache_reused_blocks": ("INT32", "1"),
    "kv_cache_alloc_total_blocks": ("INT32", "1"),
    "arrival_time_ns": ("INT64", "1"),
    "first_scheduled_time_ns": ("INT64", "1"),
    "first_token_time_ns": ("INT64", "1"),
    "last_token_time_ns": ("INT64", "1"),
    "acceptance_rate": ("FP32", "1"),
    "total_accepted_draft_tokens": ("INT32", "1"),
    "total_draft_tokens": ("INT32", "1"),
    "num_input_tokens": ("INT32", "1"),
    "num_output_tokens": ("INT32", "1"),
}
PREPARED = {
    "INPUT_ID": ("INT32", "-1", "input_ids"),
    "DECODER_INPUT_ID": ("INT32", "-1", "decoder_input_ids"),
    "REQUEST_INPUT_LEN": ("INT32", "1", "input_lengths"),
    "REQUEST_DECODER_INPUT_LEN": ("INT32", "1", "decoder_input_lengths"),
    "REQUEST_OUTPUT_LEN": ("INT32", "-1", "request_output_len"),
    "STOP_WORDS_IDS": ("INT32", "2, -1", "stop_words_list"),
    "BAD_WORDS_IDS": ("INT32", "2, -1", "bad_words_list"),
    "EMBEDDING_BIAS": ("FP32", "-1", "embedding_bias"),
    "OUT_END_ID": ("INT32", "1", "end_id"),
    "OUT_PAD_ID": ("INT32", "1", "pad_id"),
}
RENAMED = {"top_k": "runtime_top_k", "top_p": "runtime_top_p", "length_penalty": "len_penalty", "stream": "streaming"}
OF_TEXTS = ("bad_words", "stop_words", "embedding_bias_words", "embedding_bias_weights")
QUERIES = {
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
    "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
}


def add_ensemble(repository: Path, tokenizer: Path) -> None:
    """Add `preprocessing`, `postprocessing` and `ensemble` to a repository that has a model `tensorrt_llm`."""
    inputs = {"text_input": ("STRING", "1"), "max_tokens": ("INT32", "1")}
    queries = {name: (inputs | OPTIONAL)[given] for name, given in QUERIES.items()}
    required = ("QUERY", "REQUEST_OUTPUT_LEN")
    before = _tensors("input", queries, required) + _tensors(
        "output", {name: (kind, dims) for name, (kind, dims, _) in PREPARED.items()}, tuple(PREPARED)
    )
    _add_python_model(repository, "preprocessing", PREPROCESSING, before, tokenizer)
    tokens = {"TOKENS_BATCH": ("INT32", "-1, -1"), "SEQUENCE_LENGTH": ("INT32", "-1")}
    after = _tensors("input", tokens, tuple(tokens)) + _tensors("output", {"OUTPUT": ("STRING", "-1")}, ("OUTPUT",))
    _add_python_model(repository, "postprocessing", POSTPROCESSING, after, tokenizer)
    passed_on = {RENAMED.get(name, name): name for name in OPTIONAL if name not in OF_TEXTS}
    steps = [
        _step("preprocessing", QUERIES, {name: f"_{name}" for name in PREPARED}),
        _step(
            "tensorrt_llm",
            {name: f"_{mine}" for mine, (_, _, name) in PREPARED.items()} | passed_on,
            {"output_ids": "_TOKENS", "sequence_length": "_LENGTHS"} | {name: name for name in OUTPUTS},
        ),
        _step("postprocessing", {"TOKENS_BATCH": "_TOKENS", "SEQUENCE_LENGTH": "_LENGTHS"}, {"OUTPUT": "text_output"}),
    ]
    outputs = {"text_output": ("STRING", "-1")} | OUTPUTS
    config = (
        'platform: "ensemble"\nmax_batch_size: 64\n'
        + _tensors("input", inputs | OPTIONAL, tuple(inputs))
        + _tensors("output", outputs, tuple(outputs))
        + "ensemble_scheduling {\n"
        + "".join(steps)
        + "}\n"
    )
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(config)


def _add_python_model(repository: Path, name: str, code: str, tensors: str, tokenizer: Path) -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    parameter = f'parameters {{ key: "tokenizer_dir" value: {{ string_value: "{tokenizer}" }} }}\n'
    head = 'backend: "python"\nmax_batch_size: 64\ninstance_group { kind: KIND_CPU }\n'
    (folder / "config.pbtxt").write_text(head + parameter + tensors)


def _tensors(direction: str, tensors: dict[str, tuple[str, str]], required: tuple[str, ...]) -> str:
    return "".join(
        f'{direction} {{ name: "{name}" data_type: TYPE_{kind} dims: [{dims}]'
        f"{'' if name in required else ' optional: true'} }}\n"
        for name, (kind, dims) in tensors.items()
    )


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}\n' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}\n' for key, value in outputs.items()]
    body = f'model_name: "{model}"\nmodel_version: -1\n' + "".join(maps)
    return "step {\n" + textwrap.indent(body, "  ") + "}\n"
