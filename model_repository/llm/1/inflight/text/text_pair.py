"""A query and a document, which a reranker reads together."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

QUERY, DOCUMENT = "query", "document"


@dataclass(frozen=True)
class TextPair:
    """How well does the document answer the query?"""

    query: str
    document: str
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Variables for the chat template, such as an instruction. Only where the template reads pairs."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages for a chat template that reads pairs."""
        return [{"role": QUERY, "content": self.query}, {"role": DOCUMENT, "content": self.document}]


def reads_pairs(template: object) -> bool:
    """Whether a chat template is one for pairs: it names the roles of both messages.

    Templates for chats also write these two messages, but not in the form in which a reranker was trained.
    """
    return isinstance(template, str) and all(re.search(rf"""(["']){role}\1""", template) for role in (QUERY, DOCUMENT))
