"""Answers are equal to those of transformers, over every public interface."""

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import tritonclient.grpc as grpcclient

from scripts.launch.triton_server import TritonServer
from tests.triton.wire import Answer, ask_all, one

Greedy = Callable[[str, int], str]

WORDS = ["time", "river", "code", "music", "light", "house", "number", "green", "winter", "bread", "engine", "story"]


def made_up_prompt(seed: int, words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def test_generate_answers_whole(server: TritonServer, greedy: Greedy) -> None:
    prompt = "The capital of France is"
    body = {"text_input": prompt, "max_tokens": 16, "temperature": 0, "exclude_input_in_output": True}
    body["return_finish_reason"] = True
    reply = httpx.post(f"http://{server.http_url}/v2/models/llm/generate", json=body, timeout=60)
    assert reply.json()["text_output"] == greedy(prompt, 16)
    assert reply.json()["finish_reason"] == "length"


def test_generate_prepends_the_prompt_unless_told_not_to(server: TritonServer, greedy: Greedy) -> None:
    prompt = "The capital of France is"
    body = {"text_input": prompt, "max_tokens": 4}
    reply = httpx.post(f"http://{server.http_url}/v2/models/llm/generate", json=body, timeout=60)
    assert reply.json()["text_output"] == prompt + greedy(prompt, 4)


def test_generate_stream_sends_deltas(server: TritonServer, greedy: Greedy) -> None:
    prompt = "Once upon a time"
    body = {"text_input": prompt, "stream": True, "max_tokens": 24, "temperature": 0}
    # Only our own client uses this value: the finish reason comes only in the response that ends the answer.
    body["sampling_parameters"] = json.dumps({"return_finish_reason": "last"})
    with httpx.stream(
        "POST", f"http://{server.http_url}/v2/models/llm/generate_stream", json=body, timeout=60
    ) as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: ")]
    assert "".join(event["text_output"] for event in events) == greedy(prompt, 24)
    assert len(events) > 5
    assert [event.get("finish_reason") for event in events] == [None] * (len(events) - 1) + ["length"]


def test_synchronous_client_streams(server: TritonServer, greedy: Greedy) -> None:
    import queue

    from load_tests.tensors import tensors

    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        client.async_stream_infer("llm", tensors({"text_input": "2, 4, 6,", "stream": True, "max_tokens": 8}))
        text = ""
        final = False
        while not final:
            result, error = results.get(timeout=60)
            assert error is None
            text += result.as_numpy("text_output")[0].decode()
            final = result.get_response().parameters["triton_final_response"].bool_param
    assert text == greedy("2, 4, 6,", 8)


def test_sixty_four_at_once_each_as_if_alone(server: TritonServer, greedy: Greedy) -> None:
    plain, asked = [], []
    for index in range(64):
        rng = random.Random(index % 16)  # Four of each, because transformers takes long to answer.
        prompt, length = made_up_prompt(index % 16, rng.randint(3, 40)), rng.randint(1, 12)
        fields: dict[str, Any] = {"text_input": prompt, "stream": index % 2 == 0, "max_tokens": length}
        if index % 4 == 3:
            fields |= {"temperature": 0.8, "top_k": 20, "seed": index}
        elif index % 4 == 2:
            # The same settings, sent in another form.
            del fields["max_tokens"]
            fields["sampling_parameters"] = json.dumps({"max_tokens": str(length), "temperature": 0})
        if not fields["stream"]:
            fields["exclude_input_in_output"] = True
        plain.append((prompt, length))
        asked.append(fields)
    answers = ask_all(server.grpc_url, asked)
    for (prompt, length), fields, answer in zip(plain, asked, answers, strict=True):
        assert answer.error is None
        if "seed" not in fields:
            assert answer.text == greedy(prompt, length), prompt
    # A seeded sample does not depend on what else is in the batch.
    index = next(i for i, fields in enumerate(asked) if "seed" in fields)
    assert one(server.grpc_url, **asked[index]).text == answers[index].text


def test_a_chat_goes_through_the_template(server: TritonServer, tokenizer: Any, greedy: Greedy) -> None:
    messages = [{"role": "user", "content": "Name a colour."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    answer = one(server.grpc_url, messages=json.dumps(messages), max_tokens=40)
    assert answer.text == greedy(prompt, 40)
    assert answer.finish_reason == "stop"


def test_stop_words_end_the_text_before_them(server: TritonServer, greedy: Greedy) -> None:
    whole = greedy("Once upon a time", 40)
    stop = whole[20:29]
    answer = one(server.grpc_url, text_input="Once upon a time", stream=True, max_tokens=40, stop_words=[stop, "ZZZ"])
    assert answer.text == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("emoji", ["👩‍👩‍👧", "日本語のテキスト", "🇫🇷 naïve café"])
def test_pieces_are_whole_characters(server: TritonServer, greedy: Greedy, emoji: str) -> None:
    prompt = f"Repeat after me: {emoji} {emoji} {emoji} {emoji}"
    answer: Answer = one(server.grpc_url, text_input=prompt, stream=True, max_tokens=30)
    assert "\N{REPLACEMENT CHARACTER}" not in answer.text
    assert greedy(prompt, 30).startswith(answer.text)
