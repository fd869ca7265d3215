"""What a request asks for beside its sampling: bounds."""

import re
from typing import Any

import pytest

from inflight import InvalidRequest, RequestOptions
from serving.names import name as read_name


@pytest.mark.parametrize("name", ["a", "Käse & Co.", "ß" * 256, " "])
def test_a_tenant_has_a_name_of_up_to_256_characters(name: str) -> None:
    assert read_name("tenant", name) == read_name("tenant", name.encode()) == name


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ("", "tenant has 0 characters; it must have at least 1 and at most 256"),
        ("x" * 257, "tenant has 257 characters; it must have at least 1 and at most 256"),
        (b"\xff", "tenant is not valid UTF-8: byte 0 is 0xff"),
        ("a\ud800", "tenant is not valid Unicode: it holds half of a surrogate pair"),
        (5, "tenant is 5; it must be a text"),
        (["a", "b"], "tenant is ['a', 'b']; it must be a text"),
    ],
)
def test_what_is_no_name_of_a_tenant_is_refused(sent: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{re.escape(says)}$"):
        read_name("tenant", sent)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"priority": -1}, "priority is -1; it must be at least 0"),
        ({"priority": "high"}, "priority is 'high'; it must be a whole number"),
        ({"priority": True}, "priority is True; it must be a whole number"),
        ({"timeout": -1}, "timeout is -1; it must be at least 0"),
        ({"timeout": 2**64}, f"timeout is {2**64}; it must be at least 0 and at most {2**63 - 1}"),
        ({"timeout": 1.5}, "timeout is 1.5; it must be a whole number"),
        ({"deadline_ms": 0}, "deadline_ms is 0; it must be at least 1"),
        ({"deadline_ms": 10**400}, "it must be at least 1 and at most"),
        ({"target_ttft_ms": 0}, "target_ttft_ms is 0; it must be at least 1"),
        ({"cache_salt": "x" * 257}, "cache_salt has 257 characters; it must have at most 256"),
        ({"tenant": 5}, "tenant is 5; it must be a text"),
        ({"tenant": "a\0b"}, "tenant is 'a\\x00b'; it must have no NUL character"),
        ({"cache_salt": "a\ud800"}, "cache_salt is not valid Unicode: it holds half of a surrogate pair"),
        ({"lora_name": 5}, "lora_name is 5; it must be a text"),
    ],
)
def test_what_a_request_says_must_make_sense(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        RequestOptions(**given)
