"""What a caller of inflight_client sees of a healthy server."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from inflight_client import Chunk, Client, Completion


def test_stream_gives_each_word_as_it_comes(client: Client) -> None:
    started = time.monotonic()
    arrivals = []
    with client.stream("!gap 100 one two three") as stream:
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            arrivals.append(time.monotonic() - started)
    assert chunks == [Chunk("one ", None), Chunk("two ", None), Chunk("three ", None), Chunk("", "stop")]
    assert arrivals[0] < 0.2
    assert arrivals[2] >= 0.3


def test_generate_gives_all_text_at_once(client: Client) -> None:
    assert client.generate("one two") == Completion("one two ", "stop")


def test_generate_says_when_the_limit_was_reached(client: Client) -> None:
    assert client.generate("one two three", max_tokens=2) == Completion("one two ", "length")


def test_text_outside_ascii_arrives_whole(client: Client) -> None:
    assert client.generate("größe 東京 🙂").text == "größe 東京 🙂 "


def test_chat_messages_are_sent_as_they_are(client: Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "!request"}]
    request = json.loads(client.generate(messages=messages).text)
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
    assert json.loads(request["sampling_parameters"]) == {
        "max_tokens": 3,
        "seed": 2**64 - 1,
        "stop": ["\n"],
        "min_p": 0.1,
    }
    assert request["stream"] is False
    assert request["exclude_input_in_output"] is True


def test_sampling_key_that_does_not_exist_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match=r"max_token$"):
        client.generate("one", max_token=3)


@pytest.mark.parametrize("given", [{}, {"prompt": "one", "messages": []}])
def test_prompt_and_messages_exclude_each_other(client: Client, given: dict) -> None:
    with pytest.raises(TypeError, match="either a prompt or messages"):
        client.generate(**given)


def test_streams_share_one_client_without_waiting_for_each_other(client: Client) -> None:
    def read(number: int) -> str:
        with client.stream("!gap 50 " + f"{number} " * 20) as stream:
            return "".join(chunk.text for chunk in stream)

    started = time.monotonic()
    with ThreadPoolExecutor(64) as pool:
        texts = list(pool.map(read, range(64)))
    assert texts == [f"{number} " * 20 for number in range(64)]
    assert time.monotonic() - started < 4  # one takes one second, one after the other they take 64


def test_is_ready(client: Client) -> None:
    assert client.is_ready()
