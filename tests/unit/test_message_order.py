"""Messages are brought into an order that the model's template takes, and only where they must be."""

from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.text.message_order import in_order

Messages = list[dict[str, Any]]


class Strict:
    """A template like those of Gemma and Mistral: a system message first, then user and assistant in turn."""

    def __call__(self, messages: Messages) -> str:
        turns = messages[1:] if messages[0]["role"] == "system" else messages
        for index, message in enumerate(turns):
            if message["role"] != ("user", "assistant")[index % 2]:
                raise jinja2.TemplateError("Conversation roles must alternate user/assistant/user/assistant/...")
        return "".join(str(message["content"]) for message in messages)


def lenient(messages: Messages) -> str:
    return "".join(message["content"] for message in messages)


def forgetful(messages: Messages) -> str:
    """A template that leaves out every system message but the first one, and says nothing."""
    return "".join(
        message["content"] for index, message in enumerate(messages) if index == 0 or message["role"] != "system"
    )


def said(text: str) -> Messages:
    """`S a U b`: a system message a, then b of the user."""
    roles = {"S": "system", "U": "user", "A": "assistant"}
    words = text.split()
    return [{"role": roles[role], "content": words[2 * n + 1]} for n, role in enumerate(words[::2])]


@pytest.mark.parametrize("text", ["U a", "S a U b", "U a A b U c", "S a U b A c U d"])
def test_a_usual_chat_is_not_changed_and_not_probed(text: str) -> None:
    def never(messages: Messages) -> str:
        raise AssertionError(messages)

    assert in_order(said(text), never) == said(text)


@pytest.mark.parametrize("text", ["S a S b U c", "U a S b", "S a U b U c S d A e S f U g"])
def test_nothing_is_changed_where_the_template_takes_it(text: str) -> None:
    assert in_order(said(text), lenient) == said(text)


@pytest.mark.parametrize("template", [Strict(), forgetful])
def test_system_messages_at_the_beginning_become_one(template: Any) -> None:
    assert in_order(said("S a S b U c"), template) == [{"role": "system", "content": "a\n\nb"}, *said("U c")]


def test_later_system_messages_become_those_of_the_user() -> None:
    assert in_order(said("S a U b A c S d U e"), forgetful) == said("S a U b A c U d U e")
    joined = {"role": "user", "content": "d\n\ne"}
    assert in_order(said("S a U b A c S d U e"), Strict()) == [*said("S a U b A c"), joined]


def test_images_stay_in_their_places() -> None:
    image = {"type": "image"}
    messages: Messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        {"role": "user", "content": [image, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    parts = [{"type": "text", "text": "a"}, image, image, {"type": "text", "text": "b\n\nc"}]
    assert in_order(messages, Strict()) == [{"role": "user", "content": parts}]


def test_results_of_tools_are_between_messages_of_the_user() -> None:
    messages: Messages = [*said("U a A b"), {"role": "tool", "content": "c"}, *said("U d U e")]
    assert in_order(messages, Strict()) == [*messages[:3], {"role": "user", "content": "d\n\ne"}]


@given(st.lists(st.sampled_from("SUA"), min_size=1, max_size=8))
def test_no_text_is_lost_or_moved(roles: list[str]) -> None:
    messages = said(" ".join(f"{role} {number}" for number, role in enumerate(roles)))
    for template in (Strict(), lenient, forgetful):
        ordered = in_order(messages, template)
        assert "".join(message["content"] for message in ordered).replace("\n\n", "") == lenient(messages)
