"""Finds which variables a chat template heeds."""

import functools
import re
from collections.abc import Collection

import jinja2
from jinja2 import meta

# A tag of transformers that changes nothing of the text.
_GENERATION = re.compile(r"{%[-+]?\s*(?:end)?generation\s*[-+]?%}")
_TOOLS_OF_MESSAGE = re.compile(r"""\bmessage(?:\.tools\b|\[\s*['"]tools['"]\s*\])""")
_TOOLS = "tools"


def template_variables(template: str) -> list[str]:
    """Return the names of the variables that a template reads, in order. Empty if it is no valid template.

    `tools` is one of them also where the template reads them from the system message: the engine puts them there.
    """
    found = _undeclared(template)
    return sorted([*found, _TOOLS] if reads_tools_of_message(template) else found)


@functools.lru_cache(maxsize=8)
def reads_tools_of_message(template: str) -> bool:
    """Return whether a template shows tools that a message has, and reads no variable with tools."""
    return _TOOLS_OF_MESSAGE.search(template) is not None and _TOOLS not in _undeclared(template)


def _undeclared(template: str) -> Collection[str]:
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template)))
    except jinja2.TemplateError:
        return ()
