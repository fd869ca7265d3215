"""JSON that Python reads but cannot write again is refused before anything uses it."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from inflight_client import InvalidRequest
from inflight_client.request import make_request
from inflight_gateway.messages_api.output import Content
from inflight_gateway.pieces import Arguments, Call
from inflight_gateway.strict_json import MAX_CONTAINERS, MAX_DEPTH, Unwritable, read_json
from tests.gateway.test_openapi import APP


def nested(depth: int) -> str:
    return '{"a": [' * (depth // 2) + "]}" * (depth // 2)


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ('{"a": [1, {"b": NaN}]}', "a[1].b", "a[1].b is nan; it must be a finite number"),
        ('{"a": -Infinity}', "a", "a is -inf"),
        ('{"a": 1e999}', "a", "a is inf"),
        (r'{"a": {"b": "\ud83d x"}}', "a.b", r"a.b has '\ud83d' at character 0, which is half a character"),
        (r'["x\uDE00"]', "[0]", r"[0] has '\ude00' at character 1"),
        (r'{"a": {"\ud83d": 1}}', "a", "a has"),
        (f'{{"x": 1, "a": {nested(MAX_DEPTH + 2)}}}', "a", "a has over 128 levels of lists and objects"),
        (nested(MAX_DEPTH + 4), "a", "a has over 128 levels"),
        (f"[{nested(MAX_DEPTH)}]", "", "the JSON has over 128 levels"),
    ],
)
def test_what_cannot_be_written_again(text: str, field: str, message: str) -> None:
    with pytest.raises(Unwritable) as caught:
        read_json(text)
    assert caught.value.field == field
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "text", ["{}", "1e5", r'{"a": "\ud83d\ude00", "b": "\\ud83d", "c": [null, true, 0.5]}', nested(MAX_DEPTH)]
)
def test_all_else_is_read_as_it_is(text: str) -> None:
    assert read_json(text) == json.loads(text)


def many(part: str, count: int) -> str:
    return f"[{','.join([part] * count)}]"


@pytest.mark.parametrize("part", ["[]", "{}", "["])
def test_what_has_very_many_parts_is_refused_before_it_is_parsed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read_json(many("[]", MAX_CONTAINERS - 1))) == MAX_CONTAINERS - 1
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it is parsed"))
    with pytest.raises(Unwritable, match=r"^the JSON has 100001 lists and objects; it must have at most 100000$"):
        read_json(many(part, MAX_CONTAINERS))


def test_brackets_in_texts_do_not_count() -> None:
    texts = ['[{"[', "\\"] * MAX_CONTAINERS
    assert read_json(json.dumps(texts)) == texts


def test_a_long_key_is_not_written_for_each_value_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    class Key(str):
        def __format__(self, _: str) -> str:
            written.append(self)
            return str(self)

    monkeypatch.setattr(json, "loads", lambda *_, **__: {Key("k"): [*range(100), "\ud83d"]})
    with pytest.raises(Unwritable, match=r"^k\[100\] has"):
        read_json(r'"\ud83d"')
    assert len(written) == 1


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings", "/tokenize"]
)
def test_a_body_that_cannot_be_written_again_is_refused_by_name(path: str) -> None:
    client = TestClient(APP)
    for value, message in (("NaN", "a.b is nan"), (r'"\ud83d"', "a.b has"), (nested(600), "a has over 128 levels")):
        body = f'{{"model": "llm", "a": {{"b": {value}}}}}'
        response = client.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith(message)
        assert response.json()["error"]["param"] == message.split()[0]


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": 1e999}', r'{"a": "\ud83d"}', nested(600)])
def test_arguments_of_a_call_that_cannot_be_written_again_stay_text(arguments: str) -> None:
    content = Content()
    assert list(content.add([Call("f"), Arguments(arguments)]))
    assert list(content.close())
    assert content.blocks[0]["input"] == {"INVALID_JSON": arguments}


def test_the_client_refuses_what_is_too_deep_to_be_written() -> None:
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="too deep"):
        make_request("llm", "one", None, {"chat_template_kwargs": {"a": deep}}, stream=False)
