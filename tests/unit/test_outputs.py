"""From token events to what a client sees."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inflight.outputs import OutputProcessor, TokenEvent
from inflight.request import Request
from inflight.request_output import RequestOutput
from inflight.step_result import TokenLogprobs
from tests.unit.builders import make_request
from tests.unit.tiny_tokenizers import byte_level, from_bytes

TOKENIZER = byte_level()
PROMPT = from_bytes(TOKENIZER, b"> ")


def ids(text: str | bytes) -> list[int]:
    return from_bytes(TOKENIZER, text if isinstance(text, bytes) else text.encode())


def make(name: str = "r", **params: Any) -> Request:
    return make_request(name, PROMPT, max_tokens=100, **params)


def tokens(request: Request, text: str | bytes, end: str | None = None) -> list[TokenEvent]:
    """An event per byte, the last one with the finish reason."""
    events = [TokenEvent(request, (token,)) for token in ids(text)]
    if end is not None:
        events[-1] = TokenEvent(request, events[-1].token_ids, finish_reason=end)
    return events


def process_singly(events: list[TokenEvent]) -> tuple[RequestOutput, list[str], list[str]]:
    """One batch per event; returns the output, the pieces shown and the ids that a stop string ended."""
    processor, pieces, stopped = OutputProcessor(TOKENIZER), [], []
    output = RequestOutput.of(events[0].request)
    for event in events:
        deltas, ended = processor.process([event])
        stopped += ended
        for delta in deltas:
            pieces.append(delta.text)
            output.add(delta)
            assert delta.num_output == len(output.token_ids)
    return output, pieces, stopped


def test_without_a_stop_the_text_is_that_of_all_tokens() -> None:
    output, pieces, stopped = process_singly(tokens(make(), "héllo 你好", "length"))
    assert output.text == "".join(pieces) == "héllo 你好"
    assert output.token_ids == ids("héllo 你好")
    assert (output.finish_reason, output.finished, output.prompt_ids) == ("length", True, PROMPT)
    assert stopped == []


def test_no_piece_holds_half_a_character() -> None:
    _, pieces, _ = process_singly(tokens(make(), "你é", "length"))
    assert pieces == ["", "", "你", "", "é"]


def test_incomplete_bytes_at_the_end_are_dropped() -> None:
    output, _, _ = process_singly(tokens(make(), b"ok\xe4\xbd", "length"))
    assert output.text == "ok"
    assert len(output.token_ids) == 4


def test_a_stop_string_across_tokens_ends_the_request_here_and_tells_the_engine() -> None:
    output, pieces, stopped = process_singly(tokens(make(stop=("END",)), "one END"))
    assert (output.text, output.finish_reason) == ("one ", "stop")
    assert pieces == ["o", "n", "e", " ", "", "", ""]
    assert stopped == ["r"]


def test_events_after_a_stop_string_change_nothing() -> None:
    request, processor = make(stop=("X",)), OutputProcessor(TOKENIZER)
    [delta], stopped = processor.process(tokens(request, "aXb"))
    assert (delta.text, delta.token_ids, delta.finish_reason, stopped) == ("a", ids("aX"), "stop", ["r"])
    assert processor.process(tokens(request, "cd")) == ([], [])
    assert processor.process([TokenEvent(request, finish_reason="cancelled")]) == ([], [])


def test_tokens_of_one_step_after_a_stop_string_are_dropped() -> None:
    request, processor = make(stop=("X",)), OutputProcessor(TOKENIZER)
    [delta], stopped = processor.process([TokenEvent(request, ids("aXb"))])
    assert (delta.text, delta.token_ids, delta.finish_reason, stopped) == ("a", ids("aX"), "stop", ["r"])


@given(text=st.text("abé你X", max_size=20), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20))
def test_how_many_tokens_a_step_gives_changes_no_text(text: str, sizes: list[int]) -> None:
    request, rest = make(stop=("X",)), ids(text)
    events = []
    for size in sizes * len(rest):
        if rest:
            events.append(TokenEvent(request, rest[:size]))
            rest = rest[size:]
    events.append(TokenEvent(request, finish_reason="length"))
    singly, _, _ = process_singly([*tokens(request, text), TokenEvent(request, finish_reason="length")])
    together, _, _ = process_singly(events)
    assert (together.text, together.token_ids) == (singly.text, singly.token_ids)
    assert together.finish_reason == singly.finish_reason


def test_a_request_is_told_to_the_engine_once_and_not_if_it_has_ended_itself() -> None:
    request, processor = make(stop=("X",)), OutputProcessor(TOKENIZER)
    [delta], stopped = processor.process(tokens(request, "aX", "length"))
    assert (delta.finish_reason, stopped) == ("stop", [])


def test_several_events_of_a_request_in_a_batch_make_one_delta() -> None:
    first, second = make("a"), make("b")
    pairs = zip(tokens(first, "one"), tokens(second, "two"), strict=True)
    deltas, _ = OutputProcessor(TOKENIZER).process(event for pair in pairs for event in pair)
    assert [(d.request.request_id, d.text, len(d.token_ids)) for d in deltas] == [("a", "one", 3), ("b", "two", 3)]


def test_an_id_can_be_used_again_after_its_request_ended() -> None:
    processor = OutputProcessor(TOKENIZER)
    processor.process(tokens(make(), "one", "length"))
    [delta], _ = processor.process(tokens(make(), "two", "length"))
    assert delta.text == "two"


def test_text_held_back_for_a_stop_string_comes_with_the_end() -> None:
    output, pieces, _ = process_singly(tokens(make(stop=("END",)), "the EN", "length"))
    assert output.text == "the EN"
    assert pieces[-1] == "EN"
    assert output.finish_reason == "length"


def test_a_stop_string_may_complete_only_at_the_end() -> None:
    """Where its last letter shares a token with the first byte of a character that never comes."""
    shared = TOKENIZER.token_to_id("X\N{LATIN SMALL LETTER A WITH DIAERESIS}")
    request = make(stop=("X",))
    events = [*tokens(request, "a"), TokenEvent(request, (shared,), finish_reason="length")]
    output, pieces, stopped = process_singly(events)
    assert (output.text, output.finish_reason) == ("a", "stop")
    assert (pieces, stopped) == (["a", ""], [])


def test_a_cancelled_request_shows_what_it_held_back() -> None:
    request, processor = make(stop=("END",)), OutputProcessor(TOKENIZER)
    processor.process(tokens(request, "the EN"))
    [delta], _ = processor.process([TokenEvent(request, finish_reason="cancelled")])
    assert (delta.text, delta.finish_reason, delta.token_ids) == ("EN", "cancelled", [])


def test_a_request_cancelled_before_its_first_token_has_an_empty_output() -> None:
    [delta], _ = OutputProcessor(TOKENIZER).process([TokenEvent(make(), finish_reason="cancelled")])
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("", [], "cancelled")


def test_an_error_keeps_its_message() -> None:
    [delta], _ = OutputProcessor(TOKENIZER).process([TokenEvent(make(), finish_reason="error", error="why")])
    assert (delta.finish_reason, delta.error) == ("error", "why")


def test_a_stop_string_before_min_tokens_is_shown() -> None:
    output, _, _ = process_singly(tokens(make(stop=("X",), min_tokens=4), "aXbcdX"))
    assert (output.text, output.finish_reason) == ("aXbcd", "stop")


def test_a_stop_string_may_end_the_text_with_token_min_tokens() -> None:
    output, _, _ = process_singly(tokens(make(stop=("X",), min_tokens=3), "abX"))
    assert (output.text, output.finish_reason) == ("ab", "stop")


def test_a_stop_string_that_began_before_min_tokens_ends_the_text() -> None:
    output, _, _ = process_singly(tokens(make(stop=("XYZ",), min_tokens=3), "aXYZ"))
    assert output.finish_reason == "stop"


def test_a_stop_token_gives_no_text() -> None:
    """As a stop string does not, and whether or not its token counts as special."""
    output, _, _ = process_singly(tokens(make(stop_token_ids=ids("!")), "done!", "stop"))
    assert (output.text, output.token_ids) == ("done", ids("done!"))


def test_what_ends_the_text_stays_in_it_if_that_is_asked_for() -> None:
    shown: Any = {"include_stop_str_in_output": True}
    output, _, _ = process_singly(tokens(make(stop=("ne!",), **shown), "done! more"))
    assert (output.text, output.finish_reason) == ("done!", "stop")
    output, _, _ = process_singly(tokens(make(stop_token_ids=ids("!"), **shown), "done!", "stop"))
    assert (output.text, output.token_ids) == ("done!", ids("done!"))


def test_logprobs_are_kept_if_asked_for() -> None:
    entry = TokenLogprobs(-0.5, 1, {3: -0.5})
    for logprobs, kept in ((1, [entry]), (None, None)):
        request = make(logprobs=logprobs)
        output, _, _ = process_singly([TokenEvent(request, (3,), (entry,) if logprobs else (), "length")])
        assert output.logprobs == kept


def test_the_prompt_tokens_that_the_cache_spared_are_told() -> None:
    request = make()
    request.num_cached = 16
    output, _, _ = process_singly(tokens(request, "a", "length"))
    assert output.num_cached_tokens == 16


def test_without_a_tokenizer_there_are_tokens_and_no_text() -> None:
    [delta], _ = OutputProcessor(None).process(tokens(make(), "abc", "length"))
    assert (delta.token_ids, delta.text) == (ids("abc"), "")


@given(
    text=st.text("abé你", max_size=20),
    stops=st.lists(st.text("abé", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=20),
)
def test_how_events_are_batched_changes_no_text(text: str, stops: list[str], cuts: list[int]) -> None:
    request = make(stop=tuple(stops))
    events = [*tokens(request, text), TokenEvent(request, finish_reason="length")]
    singly, _, _ = process_singly(events)
    processor, shown, rest = OutputProcessor(TOKENIZER), "", list(events)
    for cut in cuts * len(events):
        deltas, _ = processor.process(rest[:cut])
        shown += "".join(delta.text for delta in deltas)
        rest = rest[cut:]
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert shown == singly.text
    assert text.startswith(shown)
    assert (singly.finish_reason == "stop") == bool(ends)


class FailingTokenizer:
    """A tokenizer that cannot decode one token."""

    def __init__(self, poison: int) -> None:
        self._poison = poison

    def decode(self, token_ids: list[int], **options: Any) -> str:
        if self._poison in token_ids:
            raise OverflowError("no such token")
        return str(TOKENIZER.decode(token_ids, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(TOKENIZER, name)


def test_a_fault_in_one_output_ends_that_one_with_an_error() -> None:
    poison = ids("!")[0]
    tokenizer: Any = FailingTokenizer(poison)
    processor = OutputProcessor(tokenizer)
    bad, good = make("bad"), make("good")
    deltas, ended = processor.process(
        [TokenEvent(good, ids("a")), TokenEvent(bad, (poison,)), TokenEvent(good, ids("b"), finish_reason="length")]
    )
    assert ended == ["bad"]
    by_id = {delta.request.request_id: delta for delta in deltas}
    assert (by_id["good"].text, by_id["good"].finish_reason) == ("ab", "length")
    assert (by_id["bad"].finish_reason, by_id["bad"].error) == ("error", "OverflowError: no such token")
    # The engine ends it before the next step; what it still computed is dropped.
    assert processor.process([TokenEvent(bad, ids("c")), TokenEvent(bad, finish_reason="cancelled")]) == ([], [])
