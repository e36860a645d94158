"""Bodies of /score and /rerank: texts that are compared.

Owns: their Structs and the checks that need no model. Called by: the preparation and the document of bodies.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from core.api.errors import RequestError
from core.api.pooling import PoolingConfig, PoolingTask
from core_apis.protocol.pooled_conversation import PooledConversation, entry_of
from core_apis.protocol.pooling import PoolingBody, Text, texts_of
from core_apis.protocol.sampling import Int32
from core_frontend.prompts.text_pairs import partnered

Side = str | list[Any] | dict[str, Any]
"""A text, an object with parts, or a list of either."""


class PairBody(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """Texts that are compared. instruction: what a template for pairs tells the model to look for.

    use_activation: whether the scores of a model that reads pairs become probabilities; activation: its older name.
    """

    instruction: str | None = None
    use_activation: bool | None = None
    activation: bool | None = None

    def task_for(self, config: PoolingConfig | None) -> PoolingTask:
        """Return the task of vectors (of tokens, if these are the model's usual ones), or of the model's scores of pairs."""
        if config is None:
            return "embed"
        return "classify" if config.scores_pairs else config.vectors

    def sides(self) -> tuple[list[Text], list[Text]]:
        """Return both sides of the comparison: one first text, or as many as second ones. Raises RequestError."""
        raise NotImplementedError

    def texts(self) -> list[Text]:
        """Return the first texts, then the second ones."""
        first, second = self.sides()
        return [*first, *second]


class ScoreRequest(PairBody, forbid_unknown_fields=True, kw_only=True):
    """Two sides to compare: text_1 with text_2, one text with each of several, or pair by pair.

    The other fields are aliases.
    """

    text_1: Side | None = None
    text_2: Side | None = None
    data_1: Side | None = None
    data_2: Side | None = None
    queries: Side | None = None
    documents: Side | None = None
    items: Side | None = None

    @property
    def text_field(self) -> str:
        """Return the name of the field with most of the texts."""
        return self._names()[1]

    def sides(self) -> tuple[list[Text], list[Text]]:
        """Return both lists, each under whichever name the request gives it."""
        one, other = self._names()
        first, second = side_of(one, getattr(self, one)), side_of(other, getattr(self, other))
        partnered(first, second, (one, other))
        return first, second

    def _names(self) -> tuple[str, str]:
        """Return the names of the two given fields. Raises RequestError for a mixture."""
        given = {name for pair in SCORED for name in pair if getattr(self, name) is not None}
        for pair in SCORED:
            if given and given <= set(pair):
                return pair
        if given:
            raise RequestError(
                f"{' and '.join(sorted(given))} are names of the same; expected text_1 and text_2.", param=min(given)
            )
        return SCORED[0]


def side_of(name: str, given: Side | None) -> list[Text]:
    """Return the texts of one side. Raises RequestError."""
    entries = given if isinstance(given, list) else [given]
    if not any(isinstance(entry, dict) for entry in entries):
        return texts_of(name, given)
    found: list[Text] = []
    for index, entry in enumerate(entries):
        is_parts = isinstance(entry, dict)
        found += [entry_of(entry, f"{name}[{index}]", name)] if is_parts else texts_of(name, entry)
    return found


SCORED = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))
"""The pairs of fields that may hold the two sides."""


class RerankRequest(PairBody, forbid_unknown_fields=True, kw_only=True):
    """A query, and documents to rank by it.

    query: a text, or an object with parts.
    documents: texts, or objects with a `text`, or with parts as `content`.
    top_n: number of best documents to return; None or 0: all.
    max_tokens_per_doc: number of tokens at the start of each document that count; None: all.
    """

    query: str | dict[str, Any] | None = None
    documents: list[Any] | None = None
    top_n: Int32 | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)] | None = None

    @property
    def text_field(self) -> str:
        """Return the name of the field with most of the texts."""
        return "documents"

    def sides(self) -> tuple[list[Text], list[Text]]:
        """Return the query, and the documents."""
        if self.query is None:
            raise RequestError(
                "The field 'query' is missing; the request needs it.", param="query", code="missing_field"
            )
        if self.top_n is not None and self.top_n < 0:
            raise RequestError(f"top_n is {self.top_n}; expected an integer from 0 on.", param="top_n")
        if not self.query:
            raise RequestError("query is empty; give text.", param="query", code="empty_prompt")
        plain: list[Text] = []
        for index, document in enumerate(self.documents or []):
            if isinstance(document, dict) and "content" in document:
                plain.append(entry_of(document, f"documents[{index}]", "documents"))
                continue
            text = document.get("text") if isinstance(document, dict) else document
            if not isinstance(text, str) or not text:
                plain = []
                break
            plain.append(text)
        if not plain:
            raise RequestError(
                "documents must be a list of texts, or of objects with a 'text', none of them empty, with at least one entry.",
                param="documents",
                code="invalid_type",
            )
        query = self.query if isinstance(self.query, str) else entry_of(self.query, "query", "query")
        return [query], plain


def shown_text(text: Text) -> str:
    """Return what an answer shows of a document: its text, without pictures."""
    return text.text_alone if isinstance(text, PooledConversation) else str(text)
