"""What ended before a question is freed after it, and never sooner."""

import gc
import weakref

import pytest

from ended_calls import EndedCalls


class Request:
    """Brings two responses, and tells whether what brings them is still there."""

    def exec(self, *, decoupled: bool):
        assert decoupled
        responses = Responses()
        self.responses = weakref.ref(responses)
        return responses


class Responses:
    """What Triton gives."""

    def __iter__(self):
        return iter(["one", "two"])


def kept(ended: EndedCalls) -> "weakref.ref[Responses]":
    request = Request()
    assert list(ended.call(request)) == ["one", "two"]
    return request.responses


@pytest.fixture(autouse=True)
def only_references_count():
    """Nothing here may be freed by the collector."""
    gc.disable()
    yield
    gc.enable()


def test_what_ended_during_a_question_outlives_it() -> None:
    ended = EndedCalls()
    before, during = kept(ended), []

    def is_cancelled() -> bool:
        assert before() is not None
        during.append(kept(ended))
        return False

    assert not ended.ask(is_cancelled)
    assert before() is None
    assert during[0]() is not None
    assert not ended.ask(lambda: False)
    assert during[0]() is None


def test_a_yes_frees_nothing() -> None:
    """It may be remembered from an earlier question."""
    ended = EndedCalls()
    before, during = kept(ended), []
    assert ended.ask(lambda: not during.append(kept(ended)))
    assert before() is not None
    assert during[0]() is not None


def test_a_question_within_another_frees_only_what_it_found() -> None:
    """Two calls begin at once; the first may not have its answer yet when the second has."""
    ended = EndedCalls()
    first, second = kept(ended), []

    def is_cancelled() -> bool:
        second.append(kept(ended))
        assert not ended.ask(lambda: False)
        assert second[0]() is None
        assert first() is not None
        return False

    assert not ended.ask(is_cancelled)
    assert first() is None


def test_what_is_left_in_the_middle_is_kept() -> None:
    """As where the first response is an error."""
    ended, request = EndedCalls(), Request()

    def first() -> str:
        for response in ended.call(request):
            return response

    assert first() == "one"
    assert request.responses() is not None
    assert not ended.ask(lambda: False)
    assert request.responses() is None
