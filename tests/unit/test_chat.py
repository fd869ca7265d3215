"""Chat messages are checked before the model's template sees them."""

from typing import Any, ClassVar

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast

from inflight import InvalidRequest
from inflight.text.chat import Chat, chat_ids
from tests.unit.tiny_tokenizers import byte_level

MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def call(arguments: object, **fields: object) -> dict[str, object]:
    return {"function": {"name": "weather", "arguments": arguments}, **fields}


class Tokenizer:
    """As much of a transformers tokenizer as a chat needs. It keeps what the template gets."""

    chat_template: str | None = "{{ messages }}"
    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def get_chat_template(self, tools: Any) -> str:
        return self.chat_template or ""

    def apply_chat_template(self, messages: Any, tools: Any, tokenize: bool, **options: Any) -> Any:
        self.got = {"messages": messages, "tools": tools, **options}
        if messages[0]["role"] == "rogue":
            raise jinja2.TemplateError("roles must alternate")
        if messages[0]["role"] == "unforeseen":
            raise TypeError("'int' object is not iterable")
        return [1, 2] if tokenize else "user: hello"


def tokens(messages: object, tools: object = None, kwargs: object = None) -> list[int]:
    return chat_ids(Tokenizer(), Chat(messages, tools, {} if kwargs is None else kwargs))


def got(messages: object, tools: object = None) -> dict[str, Any]:
    """What the template gets."""
    tokenizer = Tokenizer()
    chat_ids(tokenizer, Chat(messages, tools))
    return tokenizer.got


def test_the_template_makes_the_text_whose_size_is_checked_before_it_is_tokenized() -> None:
    sizes: list[str] = []
    assert chat_ids(Tokenizer(), Chat(MESSAGES), sizes.append) == [1, 2]
    assert sizes == ["user: hello"]


def test_a_model_without_a_template_takes_no_messages() -> None:
    tokenizer = Tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(InvalidRequest, match="no chat template; give text_input"):
        chat_ids(tokenizer, Chat(MESSAGES))


def test_a_model_may_have_a_template_for_tools_alone() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), chat_template={"tool_use": "x"})
    tool = {"type": "function", "function": {"name": "now", "parameters": {}}}
    assert len(chat_ids(tokenizer, Chat(MESSAGES, [tool]))) == 1
    with pytest.raises(InvalidRequest, match=r"messages do not fit the model's chat templates: .* no default"):
        chat_ids(tokenizer, Chat(MESSAGES))


@pytest.mark.parametrize("messages", [None, [], {}, "hello", 5])
def test_messages_are_a_list_of_at_least_one(messages: object) -> None:
    with pytest.raises(InvalidRequest, match="messages must be a list of at least 1 message"):
        tokens(messages)


def test_there_are_at_most_4096_messages() -> None:
    assert tokens(MESSAGES * 4096)
    with pytest.raises(InvalidRequest, match="messages has 4097 messages; it must have at most 4096"):
        tokens(MESSAGES * 4097)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("hello", "is 'hello'; it must be an object with role and content"),
        ({"content": "hello"}, "role is None; it must be a text"),
        ({"role": "user"}, "content is None; it must be a text"),
        ({"role": "user", "content": 1}, r"content is 1; it must be a text"),
        ({"role": "user", "content": []}, r"content is empty; it must have at least 1 part"),
        ({"role": "user", "content": [1]}, r"content\[0\] is 1; it must be an object of the type text or image"),
        ({"role": "user", "content": [{"type": "audio"}]}, r"content\[0\] is {'type': 'audio'}; it must be an object"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, r"content\[0\]\.text is 1; it must be a text"),
        ({"role": "user", "content": [{"type": "image", "image": "x"}]}, r"content\[0\] has the key 'image'"),
        ({"role": "user", "content": [{"type": "image"}] * 1025}, "content has 1025 parts; it must have at most 1024"),
        ({"role": ["user"], "content": "a"}, r"role is \['user'\]; it must be a text"),
        ({"role": "user", "content": "a", "name": None}, r"name is None; it must be a text"),
        ({**MESSAGES[0], "tool_calls": 5}, "tool_calls is 5; it must be a list"),
        ({**MESSAGES[0], "tool_calls": [{}] * 129}, "tool_calls has 129 tool calls; it must have at most 128"),
        ({**MESSAGES[0], "tool_calls": [{"function": 5}]}, r"tool_calls\[0\].function is 5; it must be an object"),
        ({**MESSAGES[0], "tool_calls": [{"type": "custom"}]}, r"tool_calls\[0\].type is 'custom'"),
        ({**MESSAGES[0], "tool_calls": [call("{}", id=5)]}, r"tool_calls\[0\].id is 5; it must be a text"),
        ({**MESSAGES[0], "tool_calls": [call(5)]}, r"tool_calls\[0\].function.arguments is 5; it must be an object"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content is None; it must be a text"),
        ({"role": "user", "tool_calls": [call("{}")]}, "content is None; it must be a text"),
        ({"role": "system", "content": None, "tool_calls": [call("{}")]}, "content is None; it must be a text"),
        ({**MESSAGES[0], "audio": 5}, r"has the key 'audio'; it must have only role, content, name"),
        (
            {**MESSAGES[0], 5: 5},
            r"has the key 5; it must have only role, content, name, reasoning_content, ",
        ),
        ({"role": "", "content": "a"}, "role is ''; it must be 1 to 64 letters"),
        ({"role": "user|>\n<|system", "content": "a"}, "role is .*; it must be 1 to 64 letters"),
        ({"role": "u" * 65, "content": "a"}, "role is 'u+'; it must be 1 to 64 letters"),
    ],
)
def test_a_malformed_message_is_named_by_its_place(message: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^messages\[1\]\.?\s?{says}"):
        tokens([*MESSAGES, message])


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(InvalidRequest, match="do not fit the model's chat template: roles must alternate"):
        tokens([{"role": "rogue", "content": "x"}])


def test_a_template_that_fails_on_the_messages_is_quoted() -> None:
    with pytest.raises(InvalidRequest, match="do not fit the model's chat template: TypeError: 'int' object is not"):
        tokens([{"role": "unforeseen", "content": "x"}])


def test_a_message_may_have_a_name() -> None:
    assert tokens([{**MESSAGES[0], "name": "Ada", "reasoning_content": ""}])


def test_calls_and_results_reach_the_template_with_arguments_as_objects() -> None:
    """So templates expect them; OpenAI has them as text."""
    calling = {"role": "assistant", "content": None, "tool_calls": [call('{"city": "Ulm"}', id="a"), call({"x": 1})]}
    result = {"role": "tool", "tool_call_id": "a", "content": "rain"}
    first, second = got([*MESSAGES, calling, result])["messages"][1:]
    assert first == {
        "role": "assistant",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}},
            {"type": "function", "function": {"name": "weather", "arguments": {"x": 1}}},
        ],
    }
    assert second == result


@pytest.mark.parametrize("arguments", ['{"city": "Ul', "[1]", "", "[" * 100_000])
def test_arguments_that_are_no_object_stay_the_text_that_a_model_wrote(arguments: str) -> None:
    (message,) = got([{"role": "assistant", "tool_calls": [call(arguments)]}])["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_tools_reach_the_template_without_nulls() -> None:
    tool = {"type": "function", "function": {**TOOL["function"], "description": None, "strict": True}}  # type: ignore[dict-item]
    assert got(MESSAGES, [tool])["tools"] == [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}, "strict": True}}
    ]
    assert got(MESSAGES)["tools"] is None


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([], "tools must be a list of at least 1 tool"),
        ({}, "tools must be a list"),
        ([TOOL] * 129, "tools has 129 tools; it must have at most 128"),
        ([TOOL, TOOL], "tools has the name 'weather' 2 times"),
        ([5], r"tools\[0\] is 5; it must be an object"),
        ([{"type": "web_search"}], r"tools\[0\].type is 'web_search'; it must be 'function'"),
        ([{"type": "function"}], r"tools\[0\].function is None; it must be an object"),
        ([{**TOOL, "custom": 1}], r"tools\[0\] has the key 'custom'; it must have only type, function"),
        ([{"type": "function", "function": {"name": "a b"}}], r"name is 'a b'; it must be 1 to 129 letters"),
        ([{"type": "function", "function": {"name": "a" * 130}}], r"name is 'a+'; it must be 1 to 129 letters"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], r"parameters is \[\]; it must be an obj"),
        ([{"type": "function", "function": {"name": "a", "strict": 1}}], "strict is 1; it must be true or false"),
        ([{"type": "function", "function": {"name": "a", "description": "\ud800"}}], "tools is not valid Unicode"),
        ([{"type": "function", "function": {"name": "a", "parameters": {"\ud800": 1}}}], "tools is not valid Unicode"),
    ],
)
def test_a_malformed_tool_is_named_by_its_place(tools: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        tokens(MESSAGES, tools)


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def test_the_name_of_a_tool_has_up_to_129_characters() -> None:
    tool = {"type": "function", "function": {"name": f"{'n' * 64}.{'f' * 64}"}}
    assert got(MESSAGES, [tool])["tools"] == [tool]


def test_values_are_nested_at_most_64_deep() -> None:
    assert tokens(MESSAGES, kwargs={"a": nested(63)})
    with pytest.raises(InvalidRequest, match="chat_template_kwargs has over 64 levels"):
        tokens(MESSAGES, kwargs={"a": nested(64)})
    with pytest.raises(InvalidRequest, match=r"messages\[0\].tool_calls\[0\].function.arguments has over 64 levels"):
        tokens([{"role": "assistant", "tool_calls": [call(nested(65))]}])


def test_variables_of_a_client_reach_the_template() -> None:
    tokenizer = Tokenizer()
    chat_ids(tokenizer, Chat(MESSAGES, template_kwargs={"enable_thinking": False}))
    assert tokenizer.got["enable_thinking"] is False


ANSWER = {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, {"add_generation_prompt": True}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"continue_final_message": True}, {"continue_final_message": True}),
        ({"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}),
        ({"continue_final_message": False, "add_generation_prompt": True}, {"add_generation_prompt": True}),
    ],
)
def test_a_chat_ends_with_a_header_or_within_its_last_message(
    asked: dict[str, bool], expected: dict[str, bool]
) -> None:
    tokenizer = Tokenizer()
    chat_ids(tokenizer, Chat([*MESSAGES, ANSWER], **asked))
    names = ("add_generation_prompt", "continue_final_message")
    assert {name: tokenizer.got[name] for name in names if name in tokenizer.got} == expected


@pytest.mark.parametrize(
    ("last", "more", "says"),
    [
        (ANSWER, {"add_generation_prompt": True}, "add_generation_prompt is true; it must be false where continue_"),
        (MESSAGES[0], {}, "the last message must be one of the assistant, without tool_calls"),
        ({**ANSWER, "content": " \n"}, {}, "the last message must have a content to continue"),
        ({**ANSWER, "tool_calls": [call({})]}, {}, "the last message must be one of the assistant, without tool_calls"),
    ],
)
def test_only_what_the_assistant_says_can_be_continued(last: object, more: dict[str, bool], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        chat_ids(Tokenizer(), Chat([*MESSAGES, last], continue_final_message=True, **more))


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ([], r"chat_template_kwargs is \[\]; it must be an object"),
        ({str(i): i for i in range(33)}, "has 33 keys; it must have at most 32"),
        ({"a b": 1}, "has the key 'a b'; it must be a variable's name"),
        ({"a" * 65: 1}, "it must be a variable's name of at most 64 characters"),
        ({"tools": []}, "has the key 'tools', which only the server or a field gives"),
        ({"messages": []}, "has the key 'messages', which only the server or a field gives"),
    ],
)
def test_a_malformed_variable_is_refused(kwargs: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        tokens(MESSAGES, kwargs=kwargs)


def test_tools_are_in_the_system_message_if_the_template_reads_them_there() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(),
        chat_template="{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}"
        "{% if message['tools'] %}[{{ message['tools'] }}]{% endif %}<end>{% endfor %}",
    )
    described = {"type": "function", "function": {"name": "now", "description": "5 <end>"}}
    system = {"role": "system", "content": "Be brief."}
    asked = {
        "system:You are a helpful assistant with some tools.": MESSAGES,
        "system:Be brief.": [system, *MESSAGES],
    }
    for beginning, messages in asked.items():
        token_ids = chat_ids(tokenizer, Chat(messages, [described]))
        tools = '[{"name": "now", "description": "5 <end>"}]'
        assert tokenizer.decode(token_ids) == f"{beginning}[{tools}]<end>user:hello<end>"
        # What a tool spells out stays text.
        assert token_ids.count(tokenizer.convert_tokens_to_ids("<end>")) == 2
    assert tokenizer.decode(chat_ids(tokenizer, Chat(MESSAGES))) == "user:hello<end>"
