"""Requests to classify, to score and to rerank, by the names of vLLM, Cohere and Jina."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo

from inflight_client import Prompt, Queueing
from inflight_gateway.chat_request import MAX_MESSAGES, ChatMessage
from inflight_gateway.embedding_request import Cut
from inflight_gateway.schemas import MAX_INPUTS, Authored, Count, Input, Text, several, text_or_list
from inflight_gateway.strict import Strict

_Texts = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("a list")],
    Discriminator(text_or_list),
]


class Scoring(Authored, Cut):
    """The common fields of these requests."""

    use_activation: bool | None = Field(
        None, description="As in vLLM. False: logits in place of probabilities. Default: true."
    )

    @property
    def is_activated(self) -> bool:
        """Whether the scores are probabilities."""
        return self.use_activation is not False


class OfPairs(Scoring):
    """The fields of requests for scores of a query and a document."""

    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = Field(
        None, description="Variables for a chat template that reads pairs, such as an instruction."
    )
    instruction: str | None = Field(
        None, description="As in vLLM: the variable of this name, unless it is given there."
    )

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """The variables for the chat template."""
        named = {} if self.instruction is None else {"instruction": self.instruction}
        return named | (self.chat_template_kwargs or {})


class ClassifyText(Scoring):
    """One or several texts."""

    input: Input

    @property
    def inputs(self) -> list[Prompt]:
        """The inputs as a list, even if there is only one."""
        return several(self.input)


class ClassifyChat(Scoring):
    """The messages of a chat."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


def _classify_form(value: Any) -> str:
    return "a chat" if isinstance(value, dict) and "messages" in value else "inputs"


ClassifyRequest = Annotated[
    Annotated[ClassifyText, Tag("inputs")] | Annotated[ClassifyChat, Tag("a chat")], Discriminator(_classify_form)
]


def _as_many_as(name: str) -> Callable[[str | list[str], ValidationInfo], str | list[str]]:
    """Return what checks that there is a document for each query of the field `name`, if it has several."""

    def check(documents: str | list[str], info: ValidationInfo) -> str | list[str]:
        queries, count = info.data.get(name), 1 if isinstance(documents, str) else len(documents)
        if isinstance(queries, list) and len(queries) > 1 and len(queries) != count:
            raise ValueError(f"it must have {len(queries)} texts, one for each query")
        return documents

    return check


class ScoreTexts(OfPairs):
    """One query and documents, or as many queries as documents, by vLLM's older names."""

    text_1: _Texts
    text_2: Annotated[_Texts, AfterValidator(_as_many_as("text_1"))]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each query with its document."""
        return _pairs(self.text_1, self.text_2)


class ScoreDocuments(OfPairs):
    """One query and documents, or as many queries as documents."""

    queries: _Texts
    documents: Annotated[_Texts, AfterValidator(_as_many_as("queries"))]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each query with its document."""
        return _pairs(self.queries, self.documents)


def _pairs(queries: str | list[str], documents: str | list[str]) -> list[tuple[str, str]]:
    left, right = ([each] if isinstance(each, str) else each for each in (queries, documents))
    return list(zip(left * len(right) if len(left) == 1 else left, right, strict=True))


def _score_form(value: Any) -> str:
    return "queries" if isinstance(value, dict) and "queries" in value else "texts"


ScoreRequest = Annotated[
    Annotated[ScoreTexts, Tag("texts")] | Annotated[ScoreDocuments, Tag("queries")], Discriminator(_score_form)
]


class Document(Strict):
    """A document as Jina has it."""

    text: Text


def _document_form(value: Any) -> str:
    return "an object" if isinstance(value, dict | Document) else "a text"


_Document = Annotated[
    Annotated[Text, Tag("a text")] | Annotated[Document, Tag("an object")], Discriminator(_document_form)
]


class RerankRequest(OfPairs):
    """The body of POST /v1/rerank and /v2/rerank."""

    query: Text
    documents: Annotated[list[_Document], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    top_n: Count | None = Field(None, description="So many of the best documents. Default: all.")
    return_documents: bool | None = Field(None, description="Whether results have the documents. Default: true.")

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RankRequest(OfPairs):
    """The body of POST /rerank in the form of Text Embeddings Inference."""

    query: Text
    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
    raw_scores: bool | None = Field(None, description="Logits in place of probabilities. Default: false.")
    return_text: bool | None = Field(None, description="Whether results have the texts. Default: false.")
    truncate: bool | None = Field(None, description="Cut what is too long for the model. Default: false.")
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    @property
    def is_activated(self) -> bool:
        """Whether the scores are probabilities."""
        return super().is_activated and not self.raw_scores

    @property
    def truncation(self) -> Queueing:
        """What the server is told of it."""
        if not self.truncate:
            return super().truncation
        side: Literal["left", "right"] = "left" if self.truncation_direction in ("left", "Left") else "right"
        return {"truncate_prompt_tokens": -1, "truncation_side": side}


def _rerank_form(value: Any) -> str:
    return "texts" if isinstance(value, dict) and "texts" in value else "documents"


AnyRerankRequest = Annotated[
    Annotated[RankRequest, Tag("texts")] | Annotated[RerankRequest, Tag("documents")], Discriminator(_rerank_form)
]
