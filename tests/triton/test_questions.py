"""What a client can ask of a model besides text, over both protocols."""

from collections.abc import Callable
from typing import Any

import pytest

from inflight_client import Client, InvalidRequest
from scripts.launch.triton_server import TritonServer

MESSAGES: Any = [{"role": "user", "content": "Hello."}]
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, server: TritonServer) -> Any:
    url = server.grpc_url if request.param == "grpc" else f"http://{server.http_url}"
    with Client(url) as client:
        yield client


def test_the_model_describes_itself(client: Client, tokenizer: Any, default_model_folder: Any) -> None:
    described = client.describe_model()
    assert described.model == str(default_model_folder)
    assert (described.vocab_size, described.max_model_len) == (49152, 8192)
    assert described.chat_template == tokenizer.chat_template
    assert described.template_variables == ("add_generation_prompt", "messages")
    assert described.special_tokens[2] == "<|im_end|>"
    assert len(described.special_tokens) == 17
    assert described.eos_token_ids == (2,)


def test_a_text_has_the_tokens_of_the_tokenizer_and_comes_back(client: Client, tokenizer: Any) -> None:
    found = client.tokenize("Straße: <|im_end|>", return_token_strs=True)
    assert list(found.token_ids) == tokenizer("Straße: <|im_end|>")["input_ids"]
    assert list(found.token_strs or ()) == tokenizer.convert_ids_to_tokens(found.token_ids)
    assert found.max_model_len == 8192
    assert client.detokenize(found.token_ids) == "Straße: <|im_end|>"
    assert client.tokenize("Hello.", add_special_tokens=False).token_strs is None


def test_a_chat_has_the_tokens_that_generate_sends_to_the_model(client: Client, tokenizer: Any) -> None:
    found = client.tokenize(messages=MESSAGES, tools=TOOLS, chat_template_kwargs={"unused": 1})
    expected = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert list(found.token_ids) == expected
    assert found.end.endswith("Hello.<|im_end|>\n<|im_start|>assistant\n")
    usage = client.chat(MESSAGES, tools=TOOLS, max_tokens=1).usage
    assert usage.prompt_tokens == len(expected)


def test_an_answer_can_continue_the_last_message(client: Client, tokenizer: Any) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "One, two, <|im_end|>"}]
    found = client.tokenize(messages=begun, continue_final_message=True)
    expected = tokenizer.apply_chat_template(
        begun, continue_final_message=True, return_dict=False, sanitize_control_tokens=True
    )
    assert list(found.token_ids) == expected
    assert found.end.endswith("One, two, <|im_end|>")
    asked: Any = {"max_tokens": 5, "temperature": 0}
    continued, whole = client.chat(begun, continue_final_message=True, **asked), client.generate(expected, **asked)
    assert (continued.text, continued.token_ids) == (whole.text, whole.token_ids)
    without = client.tokenize(messages=MESSAGES, add_generation_prompt=False)
    assert without.end.endswith("Hello.<|im_end|>\n")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda client: client.tokenize("a" * 2_000_000), "prompt is 2000000 bytes long"),
        (lambda client: client.tokenize("a", tools=TOOLS), "tools is given with text_input; it needs messages"),
        (lambda client: client.tokenize(messages=[{"role": "user"}]), r"messages\[0\].content is None"),
        (lambda client: client.tokenize(messages=MESSAGES, tools=[]), "tools must be a list of at least 1 tool"),
        (lambda client: client.detokenize([49152]), "input_ids holds token 49152; it must be at least 0 and below"),
        (lambda client: client.detokenize([1] * 8193), "input_ids has 8193 elements; it must have at most 8192"),
        (lambda client: client.chat(MESSAGES, chat_template_kwargs={"tools": 1}), "has the key 'tools', which only"),
        (lambda client: client.generate("a", chat_template_kwargs={}), "chat_template_kwargs is given with text_input"),
        (lambda client: client.generate("a", continue_final_message=True), "continue_final_message is given with text"),
        (lambda client: client.chat(MESSAGES, continue_final_message=True), "the last message must be one of the assi"),
    ],
)
def test_what_cannot_be_answered_is_refused(client: Client, ask: Callable[[Client], object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        ask(client)


def test_special_tokens_show_in_the_text_where_they_are_wanted(client: Client) -> None:
    asked: Any = {"max_tokens": 1, "logit_bias": {1: 100}, "temperature": 0}
    assert client.generate("a", **asked).text == ""
    assert client.generate("a", skip_special_tokens=False, **asked).text == "<|im_start|>"
