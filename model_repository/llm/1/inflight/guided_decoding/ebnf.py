"""Converts EBNF to Lark's syntax, in a time that grows no faster than the grammar.

llguidance's own `any_to_lark` takes a minute for 64 KiB of line breaks, in which no other thread runs.
"""

import re
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RuleNode, RuleRefNode, resolve

_LARK = re.compile(r"^[^\S\n]*+(?:%llguidance\b|start\s*+:)", re.MULTILINE)


def lark_syntax(grammar: str) -> str:
    """Return a grammar in Lark's syntax; EBNF (GBNF) is converted. Raises Exception if it is malformed EBNF."""
    if _LARK.search(grammar) is not None:
        return grammar
    rules = GrammarParser().parse(grammar)
    resolve(_referenced_first(rules))
    return "\n".join(("%llguidance {}", *map(str, rules.values())))


def _referenced_first(rules: dict[str, RuleNode]) -> dict[str, RuleNode]:
    """Return the rules, each after those that it refers to, as far as none refers to itself.

    `resolve` goes through all rules until it finds no further terminal. In this order it finds all of them at once.
    """
    sorter = TopologicalSorter({name: _references(rule) & rules.keys() for name, rule in rules.items()})
    with suppress(CycleError):  # The rules that need none in a cycle are sorted all the same.
        sorter.prepare()
    first: dict[str, RuleNode] = {}
    while ready := sorter.get_ready():
        first |= {name: rules[name] for name in ready}
        sorter.done(*ready)
    return first | rules


def _references(rule: RuleNode) -> set[str]:
    found: set[str] = set()
    unseen: list[ASTNode] = [rule]
    while unseen:
        node = unseen.pop()
        unseen += node.children()
        if isinstance(node, RuleRefNode):
            found.add(node.name)
    return found
