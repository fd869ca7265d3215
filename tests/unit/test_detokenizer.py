"""Text from tokens that come one at a time is the text of all tokens at once."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inflight.text.detokenizer import Detokenizer, TokenDecoder
from tests.unit.tiny_tokenizers import WORDS, byte_fallback, byte_level, from_bytes, from_names, metaspace

BROKEN = "\N{REPLACEMENT CHARACTER}"
BYTE_LEVEL, BYTE_FALLBACK, METASPACE = byte_level(), byte_fallback(), metaspace()

KINDS = ["byte level", "byte fallback", "metaspace"]
UNKNOWN = 10_000
"""An id that no tokenizer here has. Models often have more rows of logits than their tokenizer has tokens."""

# Characters of one to four bytes.
CHARACTERS_WITHOUT_TOKEN = ["好", "\N{GRINNING FACE}", "\N{ZERO WIDTH JOINER}"]
CHARACTERS = st.sampled_from([*"a .", "é", "你", *CHARACTERS_WITHOUT_TOKEN])
TEXTS = st.lists(CHARACTERS, max_size=12).map("".join)
# Bytes of valid characters, cut anywhere, among others that begin or continue none.
BYTES = st.lists(st.one_of(TEXTS.map(str.encode), st.binary(max_size=3), st.just("你好".encode()[:4])), max_size=6).map(
    b"".join
)


def stream(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> list[str]:
    """What each token of the output shows."""
    return list(map(Detokenizer(TokenDecoder(tokenizer), prompt).push, output))


def without_end(pieces: list[str]) -> str:
    """The whole text without replacement characters at its end: how many of them are held back is left open."""
    return "".join(pieces).rstrip(BROKEN)


def at_once(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> str:
    """What the output adds to the prompt's text, without replacement characters at its end."""
    before, after = tokenizer.decode(prompt), tokenizer.decode(prompt + output)
    assert after.startswith(before)
    return after[len(before) :].rstrip(BROKEN)


@given(TEXTS, BYTES)
@example("你好你好", "好".encode())
@example("", b"\xff\xffa\xff")
@example("", b"\xff" * 40 + "你".encode())
@example("", b"\xe4\xbd" * 40 + b"\xbd")
def test_byte_level_tokens_give_the_text_of_all_bytes_valid_or_not(prompt: str, output: bytes) -> None:
    prompt_ids, ids = from_bytes(BYTE_LEVEL, prompt.encode()), from_bytes(BYTE_LEVEL, output)
    assert without_end(stream(BYTE_LEVEL, prompt_ids, ids)) == at_once(BYTE_LEVEL, prompt_ids, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
@given(prompt=TEXTS, output=TEXTS)
def test_valid_text_never_shows_a_broken_character(tokenizer: Tokenizer, prompt: str, output: str) -> None:
    prompt_ids, ids = from_bytes(tokenizer, prompt.encode()), from_bytes(tokenizer, output.encode())
    pieces = stream(tokenizer, prompt_ids, ids)
    assert not any(BROKEN in piece for piece in pieces)
    assert "".join(pieces) == at_once(tokenizer, prompt_ids, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK, METASPACE], ids=KINDS)
@given(data=st.data())
def test_words_keep_their_spaces_and_special_tokens_give_no_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    names = WORDS if tokenizer is METASPACE else [*WORDS, *CHARACTERS_WITHOUT_TOKEN]
    parts = st.one_of(
        st.sampled_from(names).map(lambda name: from_names(tokenizer, [name])),
        st.lists(st.sampled_from([tokenizer.token_to_id("<end>"), UNKNOWN]), min_size=1, max_size=12),
    )
    texts = st.lists(parts, max_size=12).map(lambda lists: [token for part in lists for token in part])
    prompt, output = data.draw(texts), data.draw(texts)
    assert "".join(stream(tokenizer, prompt, output)) == at_once(tokenizer, prompt, output)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK, METASPACE], ids=KINDS)
@given(data=st.data())
def test_special_tokens_have_text_where_they_are_wanted(tokenizer: Tokenizer, data: st.DataObject) -> None:
    names = st.lists(st.sampled_from(["<end>", "a", "▁b", "."]), max_size=12)
    prompt, output = (from_names(tokenizer, data.draw(names)) for _ in range(2))
    decoder = TokenDecoder(tokenizer, skip_special_tokens=False)
    whole, before = (tokenizer.decode(ids, skip_special_tokens=False) for ids in (prompt + output, prompt))
    assert "".join(map(Detokenizer(decoder, prompt).push, output)) == whole[len(before) :]


@given(st.lists(st.one_of(st.sampled_from(WORDS).map(str), st.binary(min_size=1, max_size=4)), max_size=14))
def test_byte_fallback_with_invalid_bytes_loses_no_word(parts: list[str | bytes]) -> None:
    """The decoder breaks every byte of a run that is not valid as a whole, even those shown as characters."""
    high = [bytes(byte | 0x80 for byte in part) if isinstance(part, bytes) else part for part in parts]
    ids: list[int] = []
    for part in high:
        ids += from_bytes(BYTE_FALLBACK, part) if isinstance(part, bytes) else from_names(BYTE_FALLBACK, [part])
    words = "".join(part for part in high if isinstance(part, str)).replace("▁", " ")
    text = "".join(stream(BYTE_FALLBACK, from_names(BYTE_FALLBACK, ["▁the"]), ids))
    letters = " ab.the"
    assert [c for c in text if c in letters] == [c for c in words if c in letters]


def test_a_character_already_shown_stays_though_the_bytes_after_it_break_its_run() -> None:
    ids = from_bytes(BYTE_FALLBACK, b"\xc3\xa9\xc3") + from_names(BYTE_FALLBACK, ["b"])
    assert "".join(stream(BYTE_FALLBACK, from_names(BYTE_FALLBACK, ["▁the"]), ids)) == f"é{BROKEN}b"


@pytest.mark.parametrize("prompt", ["你好你", "\N{GRINNING FACE}" * 3, "é" * 9, "aé" * 9])
def test_a_prompt_that_ends_in_many_bytes_leaves_the_output_alone(prompt: str) -> None:
    prompt_ids = from_bytes(BYTE_FALLBACK, prompt.encode())
    for output, text in ((["▁a", "▁b"], " a b"), (["好", "▁b"], "好 b")):
        assert "".join(stream(BYTE_FALLBACK, prompt_ids, from_names(BYTE_FALLBACK, output))) == text


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
def test_a_prompt_that_ends_in_a_replacement_character_is_not_part_of_the_output(
    tokenizer: Tokenizer,
) -> None:
    prompt, output = from_names(tokenizer, f"a{BROKEN}"), from_names(tokenizer, "bb")
    assert "".join(stream(tokenizer, prompt, output)) == "bb"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
def test_a_prompt_that_ends_within_a_character_is_not_part_of_the_output(tokenizer: Tokenizer) -> None:
    half, other_half = "你".encode()[:2], "你".encode()[2:]
    prompt = [*from_names(tokenizer, "aa"), *from_bytes(tokenizer, half)]
    rest, b = from_bytes(tokenizer, other_half), from_names(tokenizer, "b")
    assert "".join(stream(tokenizer, prompt, rest + b)) == "你b"
    assert "".join(stream(tokenizer, prompt, b + b)) == "bb"


def test_a_character_is_shown_with_its_last_byte() -> None:
    ids = from_bytes(BYTE_LEVEL, "a你b".encode())
    assert stream(BYTE_LEVEL, from_bytes(BYTE_LEVEL, b"x"), ids) == ["a", "", "", "你", "b"]


def test_half_a_character_at_the_end_is_dropped() -> None:
    ids = from_bytes(BYTE_LEVEL, b"a" + "你".encode()[:2])
    assert stream(BYTE_LEVEL, from_bytes(BYTE_LEVEL, b"x"), ids) == ["a", "", ""]


def test_special_tokens_alone_give_no_text() -> None:
    end = BYTE_LEVEL.token_to_id("<end>")
    assert stream(BYTE_LEVEL, [end], [end] * 20) == [""] * 20


def test_tokens_beyond_the_tokenizer_give_no_text() -> None:
    ids = [UNKNOWN, *from_bytes(BYTE_LEVEL, b"a"), UNKNOWN]
    assert "".join(stream(BYTE_LEVEL, from_bytes(BYTE_LEVEL, b"x"), ids)) == "a"


class CountingDecoder(TokenDecoder):
    """Counts the tokens that it decodes."""

    decoded = 0

    def decode(self, token_ids: Sequence[int]) -> str:
        self.decoded += len(token_ids)
        return super().decode(token_ids)


END, SPACE = BYTE_LEVEL.token_to_id("<end>"), METASPACE.token_to_id("▁")


@pytest.mark.parametrize(
    ("tokenizer", "tokens"),
    [
        (BYTE_LEVEL, [END]),
        (BYTE_LEVEL, [UNKNOWN]),
        (BYTE_LEVEL, [END, *from_bytes(BYTE_LEVEL, b"a")]),
        (BYTE_LEVEL, from_bytes(BYTE_LEVEL, b"\xff")),
        (BYTE_LEVEL, from_bytes(BYTE_LEVEL, b"\xf0\x9f")),
        (BYTE_LEVEL, from_names(BYTE_LEVEL, ["X\N{LATIN SMALL LETTER A WITH DIAERESIS}"])),
        (BYTE_FALLBACK, from_bytes(BYTE_FALLBACK, b"\xff")),
        (BYTE_FALLBACK, from_bytes(BYTE_FALLBACK, b"\xff\n\n\n\n\n\n\n\n\n\n\n\n")),
        (BYTE_FALLBACK, from_bytes(BYTE_FALLBACK, "好".encode())),
        (METASPACE, [SPACE]),
    ],
)
def test_the_cost_of_a_token_does_not_grow_with_the_output(tokenizer: Tokenizer, tokens: list[int]) -> None:
    decoder = CountingDecoder(tokenizer)
    detokenizer = Detokenizer(decoder, from_names(tokenizer, ["a"]))
    for _ in range(1000):
        for token in tokens:
            detokenizer.push(token)
    assert decoder.decoded <= 40 * 1000 * len(tokens)
