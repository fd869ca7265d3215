"""The clients of inflight_client with a healthy server."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inflight_client import Client, InvalidRequest, PromptTokens, TextPair
from scripts.launch.triton_server import TritonServer


def test_stream_gives_each_word_as_it_comes(client: Client) -> None:
    started = time.monotonic()
    arrivals = []
    with client.stream("!gap 100 one two three") as stream:
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            arrivals.append(time.monotonic() - started)
    assert [chunk.text for chunk in chunks] == ["one ", "two ", "three ", ""]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert [chunk.token_ids for chunk in chunks] == [()] * 4
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (5, 3)
    assert 0.1 <= stream.timings.first_token <= arrivals[0]
    assert arrivals[2] >= 0.3
    assert stream.timings.total >= 0.3
    with client.stream("one !gap 10 !forever") as endless:
        assert next(endless).text == "one "


def test_a_stream_brings_tokens_where_they_are_asked_for(client: Client) -> None:
    with client.stream("one two three", return_token_ids=True) as stream:
        running = [(chunk.token_ids, stream.usage.completion_tokens) for chunk in stream]
    assert running == [((4,), 1), ((4,), 2), ((6,), 3), ((), 3)]


def test_generate_gives_all_text_at_once(client: Client) -> None:
    answer = client.generate("one two")
    assert (answer.text, answer.finish_reason, answer.token_ids) == ("one two ", "stop", (4, 4))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 2, 4)
    assert 0 < answer.timings.first_token == answer.timings.total


def test_generate_says_when_the_limit_was_reached(client: Client) -> None:
    answer = client.generate("one two three", max_tokens=2)
    assert (answer.text, answer.finish_reason) == ("one two ", "length")


def test_a_stream_that_was_begun_can_be_read_to_its_end(client: Client) -> None:
    with client.stream("one two three") as stream:
        assert next(stream).text == "one "
        assert stream.completion().text == "one two three "


def test_prompts_may_be_token_ids(client: Client) -> None:
    assert client.generate([7, 8, 9]).text == "[7, 8, 9] "


def test_many_answers_come_in_the_order_of_their_prompts(client: Client) -> None:
    prompts = [f"!gap {10 * (8 - number)} answer {number}" for number in range(8)]
    answers = client.generate_many(prompts, concurrency=4)
    assert [answer.text for answer in answers] == [f"answer {number} " for number in range(8)]


@pytest.mark.parametrize("concurrency", [0, -1])
def test_many_need_at_least_one_at_a_time(client: Client, concurrency: int) -> None:
    with pytest.raises(ValueError, match=f"concurrency is {concurrency}; it must be at least 1"):
        client.generate_many(["one"], concurrency=concurrency)


def test_one_of_many_that_fails_ends_the_others(client: Client) -> None:
    started = time.monotonic()
    long = "!gap 10 !forever"
    with pytest.raises(InvalidRequest, match="failed with INVALID_ARG"):
        client.generate_many([long, "!gap 100 !error INVALID_ARG", *[long] * 8], concurrency=4, max_tokens=2000)
    assert time.monotonic() - started < 20  # As long as one of the others takes.


def test_a_bar_shows_how_far_many_are(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.generate_many(["one", "two"], progress=True)
    assert "2/2" in capsys.readouterr().err


def test_text_outside_ascii_arrives_whole(client: Client) -> None:
    assert client.generate("größe 東京 🙂").text == "größe 東京 🙂 "


def test_chat_messages_are_sent_as_they_are(client: Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "!request"}]
    request = json.loads(client.chat(messages).text)
    assert json.loads(request["messages"]) == messages
    assert "text_input" not in request


def test_request_carries_what_was_asked_for(client: Client) -> None:
    request = json.loads(
        client.generate(
            "!request",
            max_tokens=3,
            seed=2**64 - 1,
            stop=["\n"],
            sampling_parameters={"seed": 1, "min_p": 0.1},
        ).text
    )
    asked = {"max_tokens": 3, "seed": 2**64 - 1, "stop": ["\n"], "min_p": 0.1}
    assert asked.items() <= json.loads(request["sampling_parameters"]).items()
    assert request["stream"] is False
    assert request["exclude_input_in_output"] is True


def test_a_prompt_comes_back_with_its_tokens_and_scores(client: Client) -> None:
    answer = client.generate("one three", max_tokens=0, prompt_logprobs=1)
    assert (answer.text, answer.finish_reason) == ("", "length")
    assert answer.prompt == PromptTokens("one three", (4, 6), ("one ", "three "))
    first, second = answer.prompt_logprobs
    assert first is None
    assert second is not None
    assert (second.chosen.text, second.chosen.logprob, second.chosen.rank) == ("three ", -0.5, 1)
    plain = client.generate("one three", return_prompt=True)
    assert (plain.prompt, plain.prompt_logprobs) == (answer.prompt, ())
    assert client.generate("one three", return_prompt="ids").prompt == PromptTokens("", (4, 6), ())
    assert client.generate("one three").prompt is None
    with client.stream("one three", return_prompt=True) as stream:
        next(stream)
        assert stream.prompt == answer.prompt
        # To the end: Triton 24.10 crashes now and then if a client leaves while the last responses are sent.
        assert [chunk.text for chunk in stream] == ["three ", ""]


def test_embeddings(client: Client) -> None:
    embedding = client.embed("one two three")
    assert (embedding.values, embedding.usage.prompt_tokens) == ((3, 0, 0, 1), 3)
    many = client.embed_many(["one", [5, 6]], pooling="mean", normalize=False, dimensions=2, priority=1, concurrency=2)
    assert [embedding.values for embedding in many] == [(1, 2, 1, 0), (2, 2, 1, 0)]
    with pytest.raises(TypeError, match="no such argument: max_tokens"):
        client.embed("one", max_tokens=3)
    with pytest.raises(InvalidRequest, match="failed with INVALID_ARG"):
        client.embed("!error INVALID_ARG")


def test_classes(client: Client) -> None:
    found = client.classify("one two three")
    assert (found.values, found.usage.prompt_tokens) == ((3, 1), 3)
    assert client.classify([{"role": "user", "content": "one"}]).values[1] == 1
    pairs = [TextPair("one two", document) for document in ("two", "three", "two one")]
    assert [each.values for each in client.classify_many(pairs)] == [(1,), (0,), (2,)]
    assert client.classify(pairs[0], use_activation=False, priority=1).values == (-1,)
    assert client.describe_model().labels == ("long", "active")
    with pytest.raises(InvalidRequest, match="the prompt is no text of whole characters"):
        client.classify(TextPair("one", "\ud800"))


def test_sampling_key_that_does_not_exist_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match=r"max_token$"):
        client.generate("one", max_token=3)


@pytest.mark.parametrize("given", [{}, {"prompt": "one", "messages": []}])
def test_prompt_and_messages_exclude_each_other(client: Client, given: dict) -> None:
    with pytest.raises(TypeError, match="either a prompt or messages"):
        client.generate(**given)


def test_streams_share_one_client_without_waiting_for_each_other(client: Client) -> None:
    def read(number: int) -> tuple[str, float, float]:
        with client.stream("!gap 50 " + f"{number} " * 20) as stream:
            first = next(stream).text
            begun = time.monotonic()
            return first + "".join(chunk.text for chunk in stream), begun, time.monotonic()

    with ThreadPoolExecutor(64) as pool:
        texts, begun, ended = zip(*pool.map(read, range(64)), strict=True)
    assert list(texts) == [f"{number} " * 20 for number in range(64)]
    # If the streams ran one after the other, no two of them would overlap.
    under_way = [sum(begin <= moment < end for begin, end in zip(begun, ended, strict=True)) for moment in begun]
    assert max(under_way) >= 16


def test_the_server_tells_of_itself_and_its_model(client: Client) -> None:
    assert client.is_ready()
    server, model = client.server_info(), client.model_info()
    assert (server.name, server.version) == ("triton", "2.51.0")
    assert "generate" in server.extensions or "model_configuration" in server.extensions
    assert (model.name, model.versions, model.decoupled) == ("llm", ("1",), True)
    assert "text_input" in {tensor.name for tensor in model.inputs}
    assert {tensor.name: (tensor.datatype, tensor.shape) for tensor in model.outputs}["token_ids"] == (
        "INT32",
        (-1, -1),
    )


def test_metrics(connect: Any, server: TritonServer) -> None:
    with connect(metrics_url=server.metrics_url) as client:
        before = client.metrics().value("nv_inference_request_success", model="llm")
        client.generate("one")
        assert client.metrics().value("nv_inference_request_success", model="llm") == before + 1
