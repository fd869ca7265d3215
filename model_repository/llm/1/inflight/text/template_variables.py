"""Finds which variables a chat template heeds."""

import re

import jinja2
from jinja2 import meta

# A tag of transformers that changes nothing of the text.
_GENERATION = re.compile(r"{%[-+]?\s*(?:end)?generation\s*[-+]?%}")


def template_variables(template: str) -> list[str]:
    """Return the names of the variables that a template reads, in order. Empty if it is no valid template."""
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return sorted(meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template))))
    except jinja2.TemplateError:
        return []
