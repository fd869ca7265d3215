"""Malformed requests for the default model with a KV cache of 6,144 tokens, and what their errors say."""

import json
from typing import Any

PROMPT = {"text_input": "Hello"}
_USER = json.dumps([{"role": "user", "content": "a"}])
_INT64 = "at most 9223372036854775807"


def sampling(**fields: Any) -> dict[str, Any]:
    """A prompt, and fields in the JSON of sampling_parameters."""
    return {**PROMPT, "sampling_parameters": json.dumps(fields)}


def embedding(request: Any) -> dict[str, Any]:
    """A request for an embedding, in JSON or to be written as JSON."""
    return {"embedding_request": request if isinstance(request, str) else json.dumps(request)}


BAD: list[tuple[dict[str, Any], str]] = [
    # The prompt.
    ({}, "exactly one of text_input, messages, input_ids and embedding_request must be given, not none"),
    ({"text_input": "a", "messages": "[]"}, "embedding_request must be given, not text_input and messages"),
    ({"text_input": "a", "input_ids": [1, 2]}, "not text_input and input_ids"),
    ({"messages": "[]", "input_ids": [1]}, "not messages and input_ids"),
    (sampling(prompt_embeds=[[0.5]]), "prompt_embeds is given, but enable_prompt_embeds is not set"),
    (
        sampling(prompt_embeds=[[0.5], ["a"]]),
        "prompt_embeds must be one list of rows, which are lists of numbers of the same length",
    ),
    ({**PROMPT, "prompt_vocab_size": 2}, "prompt_vocab_size is given without prompt_embedding_table"),
    ({"text_input": ""}, "text_input is empty; it must have at least 1 element"),
    (
        {"text_input": "word " * 140_000},
        "prompt is 700000 bytes long; it must be at most 663471, as the context is 8192",
    ),
    ({"text_input": "word " * 9000}, "has 9001 tokens; it must have at most 8191"),
    ({"text_input": b"caf\xe9 latte"}, "text_input is not valid UTF-8: byte 3 is 0xe9"),
    (
        {"messages": json.dumps([{"role": "user", "content": "a"}] * 4097)},
        "messages has 4097 messages; it must have at",
    ),
    (
        {"messages": '[{"role": "user|>", "content": "a"}]'},
        "messages[0].role is 'user|>'; it must be 1 to 64 letters, digits, '_' and '-'",
    ),
    ({**PROMPT, "continue_final_message": True}, "continue_final_message is given with text_input; it needs messages"),
    ({"messages": _USER, "continue_final_message": True}, "the last message must be one of the assistant, without"),
    (
        {"messages": _USER, "continue_final_message": True, "add_generation_prompt": True},
        "add_generation_prompt is true; it must be false where continue_final_message is true",
    ),
    ({"messages": ""}, "messages is empty; it must have at least 1 element"),
    ({"messages": "not json"}, "messages is 'not json'; it must be valid JSON"),
    ({"messages": "[" * 5000}, "messages is '[[["),
    ({"messages": "[]"}, "at least 1 message"),
    ({"messages": '{"role": "user", "content": "a"}'}, "at least 1 message"),
    ({"messages": "3"}, "at least 1 message"),
    ({"messages": '[{"role": "user"}]'}, "messages[0].content is None; it must be a text"),
    ({"messages": '[{"content": "a"}]'}, "messages[0].role is None; it must be a text"),
    ({"messages": '[{"role": "user", "content": 5}]'}, "messages[0].content is 5; it must be a text"),
    ({"messages": '[{"role": "user", "content": []}]'}, "messages[0].content is empty; it must have at least 1 part"),
    (
        {"messages": '[{"role": "user", "content": ["a"]}]'},
        "messages[0].content[0] is 'a'; it must be an object of the type text or image",
    ),
    ({**PROMPT, "image": ["?"]}, "image is not valid base64"),
    ({**PROMPT, "image": ["aGVsbG8="]}, "images are given, but the model does not read images"),
    ({**PROMPT, "image": ["aGVsbG8="], "truncate_prompt_tokens": 5}, "truncate_prompt_tokens is given with image"),
    (
        {"embedding_request": '{"input": "a"}', "image": ["aGVsbG8="]},
        "image is given with embedding_request; it needs a prompt to generate from",
    ),
    ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "messages[0].content is not valid Unicode"),
    ({"messages": '["hello"]'}, "messages[0] is 'hello'; it must be an object with role and content"),
    ({"messages": b"\xff"}, "messages is not valid UTF-8: byte 0 is 0xff"),
    ({"input_ids": []}, "input_ids is empty; it must have at least 1 element"),
    ({"input_ids": [5, -1]}, "holds token -1; it must be at least 0 and below 49152"),
    ({"input_ids": [49152]}, "holds token 49152; it must be at least 0 and below 49152"),
    ({"input_ids": [1] * 8193}, "input_ids has 8193 elements; it must have at most 8192"),
    ({"input_ids": [1] * 8192}, "has 8192 tokens; it must have at most 8191"),
    (sampling(text_input=5), "text_input is 5; it must be a text"),
    # Embeddings.
    (embedding("["), "embedding_request is '['; it must be valid JSON"),
    (embedding("[]"), "embedding_request is []; it must be a JSON object"),
    (embedding({"input": ""}), "input of embedding_request is missing or empty"),
    (embedding({"input": ["a", "b"]}), "input of embedding_request is a list of prompts; a request has one"),
    (embedding({"input": 5}), "input of embedding_request is 5; it must be a text or a list of token ids"),
    (embedding({"input": "x", "truncate": 5}), "embedding_request has the unknown key 'truncate'"),
    (embedding({"input": "x", "pooling_params": {"type": "cls"}}), "pooling_params has the unknown key 'type'"),
    (embedding({"input": "x", "pooling_params": {"pooling": "cls"}}), "pooling is 'cls'; it must be last or mean"),
    (embedding({"input": "x", "pooling_params": {"dimensions": [5, 6]}}), "dimensions is [5, 6]; it must be a whole"),
    (embedding({"input": "x", "pooling_params": {"dimensions": 577}}), "dimensions is 577; it must be at most 576"),
    (embedding({"input": "x", "pooling_params": {"task": "score"}}), "task is 'score'; it must be embed or classify"),
    (embedding({"input": [49152]}), "holds token 49152; it must be at least 0 and below 49152"),
    ({**embedding({"input": "x"}), **PROMPT}, "not text_input and embedding_request"),
    ({**embedding({"input": "x"}), "max_tokens": 3}, "max_tokens is given beside embedding_request"),
    # Lengths.
    ({**PROMPT, "max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ({**PROMPT, "max_tokens": -5}, "max_tokens is -5; it must be at least 1"),
    ({**PROMPT, "max_tokens": 100000}, "max_tokens is 100000; after a prompt of 1 tokens it must be at most 8191"),
    ({**PROMPT, "max_tokens": 7000}, "1 and 7000 tokens; together they must not be over 6145, as the KV cache holds"),
    ({**PROMPT, "min_tokens": -1}, "min_tokens is -1; it must be at least 0"),
    ({**PROMPT, "min_length": 9, "max_tokens": 3}, "min_tokens is 9; it must not be over max_tokens, 3"),
    ({**PROMPT, "min_tokens": 1, "min_length": 1}, "min_tokens and min_length are two names of one field"),
    (sampling(max_tokens="many"), "max_tokens is 'many'; it must be a whole number"),
    (sampling(max_tokens=True), "max_tokens is True; it must be a whole number"),
    (sampling(max_tokens=1.5), "max_tokens is 1.5; it must be a whole number"),
    (sampling(max_tokens=[4]), "max_tokens is [4]; it must be a whole number"),
    (sampling(max_tokens=3, max_completion_tokens=3), "max_tokens and max_completion_tokens are two names of one"),
    # Sampling.
    ({**PROMPT, "temperature": -1.0}, "temperature is -1.0; it must be at least 0"),
    ({**PROMPT, "temperature": float("nan")}, "temperature is nan; it must be finite"),
    ({**PROMPT, "temperature": float("inf")}, "temperature is inf; it must be finite"),
    (sampling(temperature=True), "temperature is True; it must be a number"),
    (sampling(temperature="hot"), "temperature is 'hot'; it must be a number"),
    ({**PROMPT, "top_k": -2}, "top_k is -2; it must be at least -1"),
    (sampling(top_k=1.5), "top_k is 1.5; it must be a whole number"),
    ({**PROMPT, "top_p": -0.5}, "top_p is -0.5; it must be over 0 and at most 1"),
    ({**PROMPT, "top_p": 1.5}, "top_p is 1.5; it must be over 0 and at most 1"),
    (sampling(top_p={}), "top_p is {}; it must be a number"),
    ({**PROMPT, "min_p": 1.5}, "min_p is 1.5; it must be at least 0 and at most 1"),
    ({**PROMPT, "min_p": -0.5}, "min_p is -0.5; it must be at least 0 and at most 1"),
    ({**PROMPT, "repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be over 0"),
    ({**PROMPT, "repetition_penalty": float("inf")}, "repetition_penalty is inf; it must be finite"),
    ({**PROMPT, "presence_penalty": 2.5}, "presence_penalty is 2.5; it must be at least -2 and at most 2"),
    ({**PROMPT, "frequency_penalty": -3.0}, "frequency_penalty is -3.0; it must be at least -2 and at most 2"),
    (sampling(seed=-2), "seed is -2; it must be at least 0 and at most 18446744073709551615"),
    (sampling(seed=2**64), "seed is 18446744073709551616; it must be at least 0 and at most 18446744073709551615"),
    ({**PROMPT, "seed": 1, "random_seed": 1}, "seed and random_seed are two names of one field"),
    (sampling(logit_bias=[1]), "logit_bias is [1]; it must be an object of token ids and numbers"),
    (sampling(logit_bias={"x": 1}), "logit_bias token is 'x'; it must be a whole number"),
    (sampling(logit_bias={"1": "y"}), "logit_bias of token 1 is 'y'; it must be a number"),
    (sampling(logit_bias={"1": 101}), "logit_bias of token 1 is 101.0; it must be at least -100 and at most 100"),
    (sampling(logit_bias={"-1": 1}), "logit_bias token is -1; it must be at least 0"),
    (sampling(logit_bias={"49152": 1}), "logit_bias holds token 49152; it must be at least 0 and below 49152"),
    (sampling(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias has 1025 tokens; it must have at most 1024"),
    ({**PROMPT, "bad_words": ["x" * 1025]}, "bad_words holds a text of 1025 characters; each must have at most 1024"),
    ({**PROMPT, "bad_words": ["x"] * 8193}, "bad_words has 8193 elements; it must have at most 8192"),
    ({**PROMPT, "bad_words": ["x"] * 129}, "bad_words has 129 texts; it must have at most 128"),
    ({**PROMPT, "bad_words": [b"\xfe"]}, "bad_words is not valid UTF-8: byte 0 is 0xfe"),
    (sampling(bad_words=[None]), "bad_words is None; it must be a text"),
    (sampling(bad_words_ids=[1]), "bad_words_ids is [1]; it must be a list of lists of token ids"),
    (sampling(bad_words_ids=[[]]), "bad_words_ids item has 0 tokens; it must have at least 1"),
    (sampling(bad_words_ids=[[-1]]), "bad_words_ids item is -1; it must be at least 0"),
    (sampling(bad_words_ids=[[1]] * 129), "bad_words_ids has 129 sequences; it must have at most 128"),
    (sampling(bad_words_ids=[[1] * 1025]), "bad_words_ids item has 1025 tokens; it must have at most 1024"),
    # Ends of the output.
    ({**PROMPT, "stop": ["a"], "stop_words": ["a"]}, "stop_words and stop are two names of one field"),
    ({**PROMPT, "stop": ["a" * 1025]}, "stop holds a text of 1025 characters; each must have at most 1024"),
    ({**PROMPT, "stop": ["a"] * 17}, "stop has 17 texts; it must have at most 16"),
    ({**PROMPT, "stop": ["fine", b"\xff"]}, "stop is not valid UTF-8: byte 0 is 0xff"),
    (sampling(stop=3), "stop is 3; it must be a text"),
    (sampling(stop={"a": 1}), "stop is {'a': 1}; it must be a text"),
    (sampling(stop="\ud800"), "stop is not valid Unicode"),
    ({**PROMPT, "stop_token_ids": [-1]}, "stop_token_ids is -1; it must be at least 0"),
    ({**PROMPT, "stop_token_ids": [49152]}, "stop_token_ids holds token 49152; it must be at least 0 and below 49152"),
    (sampling(stop_token_ids=[[1]]), "stop_token_ids is [1]; it must be a whole number"),
    ({**PROMPT, "end_id": -2}, "end_id is -2; it must be at least -1"),
    (sampling(end_id="eos"), "end_id is 'eos'; it must be a whole number"),
    (sampling(ignore_eos="perhaps"), "ignore_eos is 'perhaps'; it must be true or false"),
    (sampling(ignore_eos=2), "ignore_eos is 2; it must be true or false"),
    (sampling(include_stop_str_in_output="a"), "include_stop_str_in_output is 'a'; it must be true or false"),
    # Samples and outputs.
    ({**PROMPT, "num_return_sequences": 0}, "n is 0; it must be at least 1 and at most 16"),
    (sampling(n=17), "n is 17; it must be at least 1 and at most 16"),
    (sampling(n="x"), "n is 'x'; it must be a whole number"),
    (sampling(n=1, num_return_sequences=1), "n and num_return_sequences are two names of one field"),
    (sampling(best_of=2, n=1), "best_of is 2; it must be 1 or n, 1, without use_beam_search"),
    # Beams.
    ({**PROMPT, "beam_width": 17}, "beam_width is 17; it must be at least 1 and at most 16"),
    ({**PROMPT, "use_beam_search": True}, "beam_width, best_of or n must be at least 2 with it"),
    ({**PROMPT, "beam_width": 2, "stream": True}, "stream is true; it must be false with beam_width 2"),
    ({**PROMPT, "beam_width": 2, "seed": 5}, "seed is 5; it must be left out with beam_width 2"),
    (sampling(beam_width=2, guided_regex="[0-9]"), "it must be left out with beam_width 2"),
    (sampling(beam_width=2, n=3), "n is 3; it must be at most beam_width, 2"),
    (
        sampling(beam_width=2, include_stop_str_in_output=True),
        "it must be False with beam_width 2",
    ),
    (sampling(beam_width=2, logprobs=1), "logprobs is 1; it must be left out with beam_width 2"),
    ({**PROMPT, "beam_width": 2, "return_log_probs": True}, "return_log_probs is true; with beam_width 2"),
    (sampling(beam_width=4, max_tokens=2000), "4 beams after a prompt of 1 tokens may need 8000 tokens of the KV"),
    ({**PROMPT, "length_penalty": 2.0}, "length_penalty is 2.0; it needs a beam_width of at least 2"),
    (sampling(early_stopping="soon"), "early_stopping is 'soon'; it must be true"),
    (sampling(logprobs=21), "logprobs is 21; it must be at least 0 and at most 20"),
    (sampling(prompt_logprobs=-1), "prompt_logprobs is -1; it must be at least 0 and at most 20"),
    (sampling(prompt_logprobs=0, max_tokens=0, n=2), "n is 2; it must be 1 where max_tokens is 0"),
    ({**PROMPT, "logprob_token_ids": [1] * 129}, "logprob_token_ids has 129 tokens; it must have at most 128"),
    ({**PROMPT, "logprob_token_ids": [49152]}, "logprob_token_ids holds token 49152; it must be at least 0"),
    ({**PROMPT, "allowed_token_ids": [49152]}, "allowed_token_ids holds token 49152; it must be at least 0"),
    ({**PROMPT, "allowed_token_ids": [1] * 1025}, "allowed_token_ids has 1025 tokens; it must have at most 1024"),
    (sampling(logprobs=-1), "logprobs is -1; it must be at least 0 and at most 20"),
    (sampling(return_logprobs="maybe"), "return_logprobs is 'maybe'; it must be true or false"),
    (sampling(exclude_input_in_output=[]), "exclude_input_in_output is []; it must be true or false"),
    (
        {**PROMPT, "stream": True, "exclude_input_in_output": False},
        "When streaming, `exclude_input_in_output` = False is not allowed.",
    ),
    # The queue.
    ({**PROMPT, "priority": -1}, f"priority is -1; it must be at least 0 and {_INT64}"),
    (sampling(priority="high"), "priority is 'high'; it must be a whole number"),
    (sampling(timeout=-1), f"timeout is -1; it must be at least 0 and {_INT64}"),
    ({**PROMPT, "deadline_ms": 0}, f"deadline_ms is 0; it must be at least 1 and {_INT64}"),
    (sampling(deadline_ms=2**63), f"deadline_ms is 9223372036854775808; it must be at least 1 and {_INT64}"),
    # The JSON itself.
    (sampling(**{f"key {i}": 0 for i in range(129)}), "sampling_parameters have 129 keys; there must be at most 128"),
    (sampling(**{"k" * 129: 0}), "sampling_parameters have a key of 129 characters; each must have at most 128"),
    ({**PROMPT, "sampling_parameters": ""}, "sampling_parameters is ''; it must be valid JSON"),
    ({**PROMPT, "sampling_parameters": "{"}, "sampling_parameters is '{'; it must be valid JSON"),
    ({**PROMPT, "sampling_parameters": '{"a":' * 5000}, 'sampling_parameters is \'{"a":{"a":'),
    ({**PROMPT, "sampling_parameters": "[1]"}, "sampling_parameters is [1]; it must be a JSON object"),
    ({**PROMPT, "sampling_parameters": b"\xff{}"}, "sampling_parameters is not valid UTF-8: byte 0 is 0xff"),
]
"""Fields of the request, and a part of the error's message."""

_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"


def _completion(**fields: Any) -> str:
    return json.dumps({"model": "llm", "prompt": "Hello", **fields})


BAD_AT_THE_GATEWAY: list[tuple[str, str, int, str]] = [
    (_COMPLETIONS, '{"model": ', 400, "the body is not JSON"),
    (_COMPLETIONS, "[1]", 400, "the body must be a JSON object"),
    (_COMPLETIONS, '{"model": "llm"}', 400, "prompt is missing"),
    (_COMPLETIONS, _completion(model="other"), 404, "model is 'other'; it must be llm"),
    (_COMPLETIONS, _completion(prompt=""), 400, "prompt is ''"),
    (_COMPLETIONS, _completion(prompt=["a"] * 65), 400, "at most 64 items"),
    (_COMPLETIONS, _completion(prompt=[49152]), 400, "holds token 49152; it must be at least 0 and below 49152"),
    (_COMPLETIONS, _completion(max_tokens=0), 400, "max_tokens is 0"),
    (_COMPLETIONS, _completion(max_tokens=100000), 400, "max_tokens is 100000; after a prompt of"),
    (_COMPLETIONS, _completion(temperature=3), 400, "temperature is 3"),
    (_COMPLETIONS, _completion(temperature="hot"), 400, "temperature is 'hot'"),
    (_COMPLETIONS, _completion(n=17), 400, "n is 17"),
    (_COMPLETIONS, _completion(stop=["a"] * 17), 400, "at most 16 items"),
    (_COMPLETIONS, _completion(logit_bias={"x": 1}), 400, "logit_bias"),
    (_COMPLETIONS, _completion(seed=2**63), 400, "seed is 9223372036854775808"),
    (_COMPLETIONS, _completion(suffix="a"), 400, "suffix is not supported"),
    (_COMPLETIONS, _completion(unknown=1), 400, "unknown is not supported"),
    (_CHAT, '{"model": "llm", "messages": []}', 400, "messages is []"),
    (_CHAT, '{"model": "llm", "messages": [{"role": "robot", "content": "a"}]}', 400, "messages[0].role is 'robot'"),
    (_CHAT, '{"model": "llm", "messages": [{"role": "user", "content": 5}]}', 400, "messages[0].content is 5"),
    ("/v1/engines", "{}", 404, "not_found"),
]
"""Paths of the gateway and bodies, with the status and a part of the error's message."""
