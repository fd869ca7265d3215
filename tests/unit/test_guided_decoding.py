"""Grammars allow what they must, force what leaves no choice, and refuse what would not be enforced."""

import gc
import json
import random
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from llguidance import LLParserLimits
from tokenizers import AddedToken

from inflight import InvalidRequest, QueueFull, StructuredOutputs
from inflight.guided_decoding import foresight
from inflight.guided_decoding import grammar as grammar_module
from inflight.guided_decoding.grammar_state import GrammarState
from inflight.guided_decoding.grammars import Grammars
from inflight.guided_decoding.token_masks import TokenMasker
from inflight.scheduler.plan import ScheduledRequest
from tests.unit.builders import make_request
from tests.unit.tiny_tokenizers import byte_level, from_bytes, metaspace

TOKENIZER = byte_level()
VOCABULARY = TOKENIZER.get_vocab_size()
END = TOKENIZER.token_to_id("<end>")
CALL = {
    "type": "tag",
    "begin": "<f=a>",
    "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
    "end": "!",
}


def object_of(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A constraint: an object that has one property."""
    return {"json": {"type": "object", "properties": {name: schema}, "required": [name]}}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, VOCABULARY, [END])


def state_of(grammars: Grammars, **wanted: Any) -> GrammarState:
    return grammars.compile(StructuredOutputs(**wanted)).result().begin()


def bits(text: str) -> list[int]:
    """Tokens of a text; `<end>` is the control token."""
    pieces = text.split("<end>")
    tokens = from_bytes(TOKENIZER, pieces[0].encode())
    for piece in pieces[1:]:
        tokens += [END, *from_bytes(TOKENIZER, piece.encode())]
    return tokens


def allowed(state: GrammarState) -> set[int]:
    request = make_request("a", grammar=state)
    future = TokenMasker(VOCABULARY).begin([ScheduledRequest.next_of(request, 4)])
    assert future is not None
    masks = future.result()
    assert masks.index.tolist() == [0]
    return set(np.flatnonzero(np.unpackbits(masks.bits.view(np.uint8)[0], bitorder="little")).tolist())


OBJECT_IN_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "json_schema", "json_schema": {"type": "object"}},
        "end": "</a>",
    },
}


def outcome(state: GrammarState, text: str) -> str:
    """How far an output gets: `complete`, `ended`, `open`, or the first character that is not allowed."""
    for token in bits(text):
        if token not in allowed(state):
            return TOKENIZER.decode([token], skip_special_tokens=False)
        state.accept(token)
    if state.ended:
        return "ended"
    return "complete" if END in allowed(state) else "open"


@pytest.mark.parametrize(
    ("wanted", "text", "expected"),
    [
        ({"regex": "[0-9]{3}"}, "123", "ended"),
        ({"regex": "[0-9]{3}"}, "12", "open"),
        ({"regex": "^[0-9]{2,3}$"}, "12", "complete"),
        ({"regex": "[0-9]+"}, "1a", "a"),
        ({"choice": ["yes", "yesterday", 'say "no"']}, "yes", "complete"),
        ({"choice": ["yes", "yesterday", 'say "no"']}, "yesterday", "ended"),
        ({"choice": ["yes", "yesterday", 'say "no"']}, 'say "no"', "ended"),
        ({"choice": ["é", "你"]}, "你", "ended"),
        ({"grammar": 'root ::= "a" | "(" root ")"'}, "((a))", "ended"),
        ({"grammar": 'root ::= "a" | "(" root ")"'}, "((a)", "open"),
        ({"grammar": 'start: "a" | "(" start ")"'}, "(a)", "ended"),
        ({"json_object": True}, '{"a": [1, {"b": null}]}', "ended"),
        ({"json_object": True}, "[", "["),
        ({"json": True}, "[1]", "ended"),
        ({"json": {"type": "object"}}, '{"a":1', "1"),
        ({"json": {"type": "object"}, "whitespace_pattern": " ?"}, '{ "a" : 1}', "ended"),
        ({"structural_tag": OBJECT_IN_TAG, "whitespace_pattern": " ?"}, '<a>{ "a" : 1}</a>', "ended"),
        ({"structural_tag": OBJECT_IN_TAG}, '<a>{ "a": 1}</a>', " "),
        ({"json": {"enum": ["a", 1]}}, '"a"', "ended"),
        # Objects that name properties have no others, unless they say so.
        ({"json": {"properties": {"a": {}}, "required": ["a"], "type": "object"}}, '{"a": 1,', ","),
        ({"json": {"properties": {"a": {}}, "type": "object", "additionalProperties": True}}, '{"b": 1}', "ended"),
        ({"json": {"properties": {"a": {}}, "required": ["b"], "type": "object"}}, '{"b": 1}', "ended"),
        ({"json": {"items": {"properties": {"properties": {"const": 1}}, "type": "object"}}}, '[{"b', "b"),
        (
            {"json": {"allOf": [{"properties": {"a": {}}, "type": "object"}, {"required": ["b"]}]}},
            '{"b": 1}',
            "ended",
        ),
        ({"json": {"type": "object", "minProperties": 2, "required": ["a"]}}, '{"a": 1, "b": 2}', "complete"),
        ({"json": {"const": {"minProperties": 5}}}, '{"minProperties": 5}', "ended"),
        # What several parts of a schema say of an object stays open.
        (
            {"json": {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}, "required": ["b"]}]}},
            '{"a": 1, "b": 2}',
            "complete",
        ),
        (
            {
                "json": {
                    "$defs": {"base": {"properties": {"a": {}}, "required": ["a"], "type": "object"}},
                    "$ref": "#/$defs/base",
                    "properties": {"b": {}},
                    "required": ["b"],
                }
            },
            '{"a": 1, "b": 2}',
            "complete",
        ),
        # A class that excludes a quote or a backslash excludes its escape.
        ({"json": {"type": "string", "pattern": '^[^"]{1,3}$'}}, '"\\"', '"'),
        ({"json": {"type": "string", "pattern": '^[^"]{1,3}$'}}, '"a\\n"', "complete"),
        ({"json": {"type": "string", "pattern": r"^[^/\\]+$"}}, r'"a\\', "\\"),
        ({"json": {"type": "string", "pattern": r'^\[\^"x]$'}}, r'"[^\"x]"', "ended"),
        # Also in a property that has the name of a keyword.
        (object_of("default", {"type": "string", "pattern": '^[^"]{1,3}$'}), '{"default": "\\"', '"'),
        (object_of("const", object_of("properties", {"const": 1})["json"]), '{"const": {"properties": 1, ', ","),
        (object_of("allOf", {"const": 1}), '{"allOf": 1, ', ","),
        (object_of("examples", {"type": "integer", "maximum": 2**53 + 1}), '{"examples": 9007199254740993', "3"),
        # Bounds that are no floats become stricter.
        ({"json": {"type": "integer", "maximum": 2**53 + 1}}, "9007199254740993", "3"),
        ({"json": {"type": "integer", "maximum": 2**53 + 1}}, "9007199254740992", "ended"),
        ({"json": {"enum": [2**53]}}, "9007199254740992", "ended"),
    ],
)
def test_what_a_constraint_allows(grammars: Grammars, wanted: dict[str, Any], text: str, expected: str) -> None:
    found = outcome(state_of(grammars, **wanted), text)
    assert found == (expected if expected != "complete" or found != "ended" else "ended")


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ({"type": "const_string", "value": "a<end>b"}, "a<end>b", "ended"),
        ({"type": "regex", "pattern": "a/b+"}, "a/bb", "complete"),
        ({"type": "grammar", "grammar": 'root ::= "x" root | "y"'}, "xxy", "ended"),
        ({"type": "or", "elements": [{"type": "const_string", "value": c} for c in "ab"]}, "b", "ended"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, CALL]}, "so: <f=a>12!", "ended"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, CALL]}, "so: <f=b", "open"),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "<end>\n"}]},
            "so<end>\n",
            "ended",
        ),
        (
            {"type": "sequence", "elements": [{**CALL, "begin": "<t>", "content": {"type": "any_text"}}, CALL]},
            "<t>a<t>!<f=a>1!",
            "ended",
        ),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL]}, "hi <f=a>1! and <f=a>2! bye", "complete"),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL]}, "hi <f=b", "b"),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL]}, "hi", "complete"),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], "at_least_one": True}, "hi", "open"),
        ({"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], "stop_after_first": True}, "<f=a>1!", "ended"),
        ({"type": "tags_with_separator", "tags": [CALL], "separator": ", "}, "<f=a>1!, <f=a>2!", "complete"),
        ({"type": "tags_with_separator", "tags": [CALL], "separator": ", "}, "", "complete"),
        (
            {"type": "tags_with_separator", "tags": [CALL], "separator": ", ", "at_least_one": True},
            "<f=a>1!<",
            "<",
        ),
    ],
)
def test_structural_tags(grammars: Grammars, form: dict[str, Any], text: str, expected: str) -> None:
    tag = {"type": "structural_tag", "format": form}
    assert outcome(state_of(grammars, structural_tag=tag), text) == expected


def test_the_older_form_of_structural_tags(grammars: Grammars) -> None:
    tag = {"structures": [{"begin": "<f=a>", "schema": {"type": "integer"}, "end": "!"}], "triggers": ["<f"]}
    assert outcome(state_of(grammars, structural_tag=json.dumps(tag)), "hi <f=a>12!") == "complete"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"json": {"uniqueItems": True}}, 'json cannot be enforced: Unimplemented keys: ["uniqueItems"]'),
        ({"json": {"not": {}}}, 'json cannot be enforced: Unimplemented keys: ["not"]'),
        ({"json": {"type": "string", "format": "phone"}}, "json cannot be enforced: Unknown format: phone"),
        ({"json": {"minimum": 3, "maximum": 2, "type": "integer"}}, "json cannot be enforced: Unsatisfiable schema"),
        ({"json": {"$ref": "http://a/b"}}, "json cannot be enforced: "),
        ({"json": {"oneOf": [{}, {}]}}, "json cannot be enforced: oneOf constraints are not supported where more than"),
        (
            {"json": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
            "json cannot be enforced: no finite text matches it",
        ),
        ({"json": {"not": {}, "items": {"minProperties": 3}}}, "json has minProperties 3; it must be at most 1, as 0"),
        ({"json": {"x-guidance": {"lenient": True}}}, "json has the key 'x-guidance', which is not supported"),
        ({"json": False}, "json is false; no document matches that schema"),
        ({"json": "[1]"}, "json is [1]; it must be a JSON schema"),
        ({"json": "{"}, "json is '{'; it must be valid JSON"),
        ({"json": '{"a":' * 400 + "1" + "}" * 400}, "json cannot be enforced: "),
        ({"regex": "(a"}, "regex cannot be enforced: "),
        ({"regex": "a(?=b)"}, "regex cannot be enforced: "),
        ({"grammar": 'root ::= "a'}, "grammar is no valid EBNF: "),
        ({"grammar": "start: missing"}, "grammar cannot be enforced: "),
        ({"grammar": 'start: a\na[temperature=0.5]: /x+/'}, "grammar has the option 'temperature' on a rule"),
        ({"grammar": 'start: a "b"\na[stop="b"]: /x+/'}, "grammar has the option 'stop' on a rule"),
        ({"structural_tag": {}}, "structural_tag has neither format nor structures"),
        ({"structural_tag": {"format": {"type": "xml"}}}, "structural_tag has the type 'xml'; it must be one of"),
        ({"structural_tag": {"format": []}}, "structural_tag holds []; it must be an object"),
        ({"structural_tag": {"format": {"type": "or", "elements": []}}}, "structural_tag has no elements"),
        (
            {"structural_tag": {"format": {"type": "json_schema", "json_schema": {"title": "A tool", "not": {}}}}},
            "structural_tag cannot be enforced: failed to compile JSON schema: Unimplemented keys: "
            '["not"], in {"title": "A tool", "not": {}',
        ),
        (
            {"structural_tag": {"format": {"type": "json_schema", "json_schema": {"type": "string", "pattern": "["}}}},
            "structural_tag cannot be enforced: failed to compile JSON schema: regex parse error:\n    [\n    ^\n"
            'error: unclosed character class, in {"type": "string", "pattern": "["',
        ),
        (
            {"structural_tag": {"format": {"type": "triggered_tags", "triggers": ["<g"], "tags": [CALL]}}},
            "structural_tag has the tag '<f=a>', which begins with none of its triggers",
        ),
        (
            {"structural_tag": {"format": {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex"}]}}},
            "structural_tag has any_text before something else than",
        ),
        ({"json": {"enum": [f"{i}" * 9 for i in range(6000)]}}, "json "),
        # As floats, they would be other numbers.
        ({"json": {"enum": [2**53 + 1]}}, "json has enum with 9007199254740993; whole numbers there must be at most"),
        (object_of("enum", {"enum": [2**53 + 1]}), "json has enum with 9007199254740993; whole numbers there"),
        (object_of("const", {"minProperties": 3}), "json has minProperties 3; it must be at most 1, as 0"),
        ({"json": {"items": {"const": {"id": [-(2**60) - 1]}}}}, "json has const with -1152921504606846977; whole"),
        ({"json": {"type": "integer", "maximum": 10**400}}, "json has a bound of 401 digits, which is too large"),
        # They would be forced as the control token.
        ({"choice": ["a<end>"]}, "choice has the text '<end>', a control token of the model; it cannot be enforced"),
        ({"regex": "[a-c]\\<end\\>"}, "regex has the text '<end>', a control token"),
        ({"json": {"items": {"enum": ["b", "x<end>"]}}}, "json has the text '<end>', a control token"),
        (object_of("enum", {"enum": ["x<end>"]}), "json has the text '<end>', a control token"),
        ({"json": {"properties": {"<end>": {"type": "integer"}}}}, "json has the text '<end>', a control token"),
        (
            {"structural_tag": {"format": {"type": "json_schema", "json_schema": {"const": {"a": "<end>"}}}}},
            "json has the text '<end>', a control token",
        ),
        (
            {"grammar": 'start: %json {"type": "integer", "x-guidance": {"lenient": true}}'},
            "grammar has the key 'x-guidance', which is not supported",
        ),
    ],
)  # fmt: skip
def test_what_would_not_be_enforced_is_refused(grammars: Grammars, wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        state_of(grammars, **wanted)
    assert str(refused.value).startswith(message)


COSTLY = {
    "nested repetition": {"regex": "((a{1,100}){1,100}){1,100}"},
    "2,500 optional properties": {
        "json": {"type": "object", "properties": {f"p{number}": {} for number in range(2500)}}
    },
}


@pytest.mark.parametrize("wanted", COSTLY.values(), ids=COSTLY)
def test_what_would_exceed_a_limit_soon_is_refused(grammars: Grammars, wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"(regex|json) (is too complex: after a few tokens|cannot be enforced)"):
        state_of(grammars, **wanted)


def test_what_has_no_choice_is_followed_at_once(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask in a long forced text takes as long as the text, and 32 tokens of four outputs were followed."""
    masks = []
    monkeypatch.setattr(foresight, "fill_next_token_bitmask", lambda *_: masks.append(1))
    state_of(grammars, json={"const": {f"key {i}": i for i in range(20)}})
    assert not masks


@pytest.mark.parametrize("pattern", ["(.*a.{12}b)+", "[^\\n]{0,2000}", "(a|b)*abb", "x", ""])
def test_what_stays_within_the_limits_is_taken(grammars: Grammars, pattern: str) -> None:
    state_of(grammars, regex=pattern)


def test_a_deep_structural_tag_is_refused(grammars: Grammars) -> None:
    form: dict[str, Any] = {"type": "any_text"}
    for _ in range(40):
        form = {"type": "or", "elements": [form]}
    with pytest.raises(InvalidRequest, match="nested more than 32 deep"):
        state_of(grammars, structural_tag={"format": form})


def test_tokens_without_choice_are_forced(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}
    state = state_of(grammars, json={**schema, "additionalProperties": False})
    opening = bits('{"name": ')
    assert list(state.forced) == opening
    assert allowed(state) == {opening[0]}
    for token in opening:
        state.accept(token)
    assert not state.forced
    assert bits("-")[0] in allowed(state)
    assert bits('"')[0] not in allowed(state)
    state.accept(bits("7")[0])
    assert not state.forced  # Another digit, or the end.
    state.accept(bits("}")[0])
    assert state.ended


def test_an_output_that_uses_up_the_shared_lexer_does_not_end_the_others(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LLParserLimits(max_lexer_states=400, verbose_errors=False)
    monkeypatch.setattr(grammar_module, "_limits", lambda strictness: limits)
    grammar = grammars.compile(StructuredOutputs(regex="(.*a.{30}b.*c.{20}d)+")).result()
    greedy, modest = grammar.begin(), grammar.begin()
    letters = random.Random(5).choices("abcd", k=2000)
    accepted = 0
    while allowed(greedy):
        greedy.accept(bits(letters[accepted])[0])
        accepted += 1
    assert "too many states" in (greedy.error or "")
    assert accepted > 10
    for token in bits("abc"):
        assert token in allowed(modest)
        modest.accept(token)
    assert modest.error is None


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('expr ::= "a"', "No 'root' rule found"),
        ("root ::= x", "Rule 'x' not found"),
    ],
)
def test_ebnf_without_its_rules_is_refused(grammars: Grammars, grammar: str, reason: str) -> None:
    for wanted in ({"grammar": grammar}, {"structural_tag": {"format": {"type": "grammar", "grammar": grammar}}}):
        with pytest.raises(InvalidRequest, match=f"grammar is no valid EBNF: {reason}"):
            state_of(grammars, **wanted)


def test_a_structural_tag_is_valid_unicode(grammars: Grammars) -> None:
    with pytest.raises(InvalidRequest, match="structural_tag: pattern is not valid Unicode"):
        state_of(grammars, structural_tag={"format": {"type": "regex", "pattern": "\ud800"}})


def test_equal_constraints_are_compiled_once_and_the_oldest_is_forgotten() -> None:
    grammars = Grammars(TOKENIZER, VOCABULARY, [END])
    first = grammars.compile(StructuredOutputs(regex="a")).result()
    assert grammars.compile(StructuredOutputs(regex="a")).result() is first
    for number in range(64):
        grammars.compile(StructuredOutputs(regex=f"a{{{number + 1}}}")).result()
    assert grammars.compile(StructuredOutputs(regex="a")).result() is not first
    assert grammars.num_compiled == 66


def test_each_reader_of_a_grammar_that_failed_gets_an_exception_of_its_own(grammars: Grammars) -> None:
    wanted = StructuredOutputs(regex="(unclosed")
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unclosed group") as caught:
            grammars.compile(wanted).result()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert str(errors[0]) == str(errors[1])


@pytest.fixture
def busy_grammars() -> Iterator[tuple[Grammars, threading.Event]]:
    """Grammars that begin to compile when the event is set."""
    grammars, free = Grammars(TOKENIZER, VOCABULARY, [END]), threading.Event()
    grammars._pool.submit(free.wait)
    try:
        yield grammars, free
    finally:
        free.set()


class Waiting:
    """Stands for a request."""


@pytest.mark.parametrize("pattern", ["(unclosed", "ab"])
def test_a_kept_grammar_does_not_keep_the_requests_that_waited_for_it(
    busy_grammars: tuple[Grammars, threading.Event], pattern: str
) -> None:
    grammars, free = busy_grammars
    request, wanted = Waiting(), StructuredOutputs(regex=pattern)
    grammars.compile(wanted).add_done_callback(partial(lambda request, _: None, request))
    waits = weakref.ref(request)
    del request
    free.set()
    # Grammars are compiled one after another.
    grammars.compile(StructuredOutputs(regex="last")).result()
    gc.collect()
    assert waits() is None
    assert grammars.compile(wanted).done()


def test_no_more_than_256_of_a_tenant_wait_to_be_compiled(busy_grammars: tuple[Grammars, threading.Event]) -> None:
    grammars, _ = busy_grammars
    for number in range(1024):
        grammars.compile(StructuredOutputs(regex=f"a{{{number}}}"), f"tenant {number // 256}")
        if number == 255:
            with pytest.raises(QueueFull, match="Exceeds maximum queue size: 256 grammars wait to be compiled"):
                grammars.compile(StructuredOutputs(regex="b"), "tenant 0")
    with pytest.raises(QueueFull, match="Exceeds maximum queue size: 1024 grammars wait to be compiled"):
        grammars.compile(StructuredOutputs(regex="b"), "another")


def test_tenants_take_turns_to_have_their_constraints_compiled(busy_grammars: tuple[Grammars, threading.Event]) -> None:
    grammars, free = busy_grammars
    order: list[str] = []
    for tenant, count in (("a", 3), ("b", 1), ("c", 2)):
        for number in range(count):
            future = grammars.compile(StructuredOutputs(regex=f"{tenant}{{{number}}}"), tenant)
            future.add_done_callback(lambda _, tenant=tenant: order.append(tenant))
    free.set()
    grammars.compile(StructuredOutputs(regex="last"), "a").result()
    assert "".join(order) == "abcaca"


def test_a_tokenizer_may_have_added_tokens_for_which_the_model_has_no_logit() -> None:
    larger = byte_level()
    larger.add_special_tokens([AddedToken("<image>", special=True)])
    wanted = {"regex": "<image>|[a-c]"}
    state, expected = (state_of(Grammars(each, VOCABULARY, [END]), **wanted) for each in (larger, TOKENIZER))
    assert allowed(state) == allowed(expected) == {*bits("abc"), *bits("<")}
    assert outcome(state, "<image><end>") == outcome(expected, "<image><end>")


def test_a_model_without_a_tokenizer_that_llguidance_knows_refuses_constraints() -> None:
    for tokenizer, reason in ((None, "the model folder has no tokenizer"), (metaspace(), "llguidance does not know")):
        with pytest.raises(InvalidRequest, match=f"structured_outputs is given, but {reason}"):
            Grammars(tokenizer, 13, []).compile(StructuredOutputs(json_object=True)).result()
