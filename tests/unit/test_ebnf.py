"""EBNF becomes the same grammar as with llguidance's own converter, but in less time for what is made to take long."""

import pytest
from llguidance.gbnf_to_lark import RuleRefNode, any_to_lark

from inflight.errors import InvalidRequest
from inflight.guided_decoding.ebnf import lark_syntax
from inflight.guided_decoding.grammar_text import lark_of
from inflight.structured_outputs import MAX_CHARACTERS

CHAIN = ["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(200)), 'r200 ::= "a"']


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"\n',
        'root ::= list\nlist ::= "[" value? "]"\nvalue ::= word | list\nword ::= letter+\nletter ::= [a-z]\n',
        "# What it is.\nroot ::= camelCase\ncamelCase ::= other-name{2,3}\n# A digit.\nother-name ::= [0-9]",
        "\n".join(CHAIN),
        "\n".join(reversed(CHAIN)),
        'start: "a"',
        '\n \r\n\t start \n : "a"',
        "%llguidance {}\nstart: /x/",
        'root ::= restart\nrestart ::= "a"',
    ],
)
def test_the_grammar_is_that_of_llguidance(grammar: str) -> None:
    assert lines(lark_syntax(grammar)) == lines(any_to_lark(grammar))


def lines(grammar: str) -> list[str]:
    return [line for line in grammar.split("\n") if line]


def test_a_chain_of_rules_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    is_terminal = RuleRefNode.is_terminal

    def counted(self: RuleRefNode) -> bool:
        nonlocal asked
        asked += 1
        return is_terminal(self)

    monkeypatch.setattr(RuleRefNode, "is_terminal", counted)
    lark_syntax("\n".join(CHAIN))
    assert asked <= len(CHAIN)


@pytest.mark.parametrize("part", ["\n", " \n", "start ", "a[stop ", "\na[ stop"])
def test_a_long_text_that_is_no_grammar_is_refused(part: str) -> None:
    """With patterns that go back, the first takes a minute, in which no other thread runs."""
    with pytest.raises(InvalidRequest, match="grammar is no valid EBNF"):
        lark_of(part * (MAX_CHARACTERS // len(part)))
