"""Only the operator's key begins a drain, whatever bytes it has."""

import pytest

from inflight import InvalidRequest
from serving.drain import Drain


@pytest.mark.parametrize("key", ["secret", "secr\u00e9t", "secret\udcff"])
def test_another_key_is_refused(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPERATOR_KEY", key)
    drain = Drain()
    for other in ({}, {"operator_key": "wrong"}, {"operator_key": 7}):
        with pytest.raises(InvalidRequest, match="operator_key is not the OPERATOR_KEY"):
            drain.begin(other)
    assert not drain.has_begun


@pytest.mark.parametrize("key", ["secret", "secr\u00e9t"])
def test_the_key_begins_it(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPERATOR_KEY", key)
    drain = Drain()
    drain.begin({"operator_key": key})
    assert drain.has_begun
