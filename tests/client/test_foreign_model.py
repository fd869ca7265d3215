"""The client recognizes another project's model with a similar contract by its first response."""

import pytest

from inflight_client import ServerFault
from inflight_client.request import make_request
from inflight_client.response import Reply, Usage
from inflight_client.transcript import Transcript


def reply(text: str, usage: Usage | None) -> Reply:
    return Reply(texts=[text], finish_reasons=(), token_ids=(), logprobs=(), usage=usage)


def test_a_first_response_without_usage_is_no_model_of_ours() -> None:
    transcript = Transcript(make_request("llm", "Hello", None, {}, stream=True))
    with pytest.raises(ServerFault, match="lacks 'usage'; it is no model of Inflight"):
        transcript.add(reply("Hi", None))


def test_later_responses_need_none() -> None:
    transcript = Transcript(make_request("llm", "Hello", None, {}, stream=True))
    assert [chunk.text for chunk in transcript.add(reply("Hi", Usage(3, 1)))] == ["Hi"]
    assert [chunk.text for chunk in transcript.add(reply(" there", None))] == [" there"]
    assert transcript.usage() == Usage(3, 1)
