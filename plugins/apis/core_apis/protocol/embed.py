"""Bodies and answers of /v1/embed and /v2/embed, Cohere's routes for vectors.

Owns: their Structs and the checks that need no model. Called by: the preparation, the answers and the document of
bodies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from core.api.errors import RequestError
from core.api.pooling import PoolingConfig, PoolingTask
from core_apis.protocol.pooled import RerankMeta
from core_apis.protocol.pooling import PoolingBody, Text
from core_apis.protocol.sampling import Int32
from core_frontend.api.pooling_params import PoolingParams

VectorType = Literal["float", "binary", "ubinary", "base64"]
"""Forms of numbers.

binary and ubinary have one bit per number (whether it is positive), packed into signed or unsigned 8-bit integers.
"""

PROMPTS = {"search_query": ("search_query", "query"), "search_document": ("search_document", "document", "passage")}
"""Names of prompts in checkpoints for each input type, in the order in which they are tried."""
WITHOUT_PROMPT = ("search_query", "search_document", "classification", "clustering")
"""Cohere's input types that a model without a prompt for them accepts as they are."""


class EmbedRequest(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """Texts to embed: `texts`, or `inputs` with one text each.

    input_type: purpose of the vectors: the prompt of this name in the checkpoint's files is put before each text.
    truncate, max_tokens: a text longer than the model's limit, or than `max_tokens`, is truncated (END) or refused
        (NONE).
    """

    texts_given: list[Any] | None = msgspec.field(default=None, name="texts")
    inputs: list[Any] | None = None
    images: list[Any] | None = None
    input_type: str | None = None
    embedding_types: list[VectorType] | None = None
    output_dimension: Int32 | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)] | None = None

    @property
    def text_field(self) -> str:
        """Return the name of the field with the texts."""
        return "texts" if self.inputs is None else "inputs"

    @property
    def field_names(self) -> dict[str, str]:
        """Return Cohere's names of parameters, for errors."""
        own = {"dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens", "prompt_name": "input_type"}
        return {**super().field_names, **own}

    @property
    def types(self) -> list[VectorType]:
        """Return the number forms that the answer has."""
        return self.embedding_types or ["float"]

    def texts(self) -> list[Text]:
        """Return all texts. Raises RequestError."""
        if self.images is not None:
            raise RequestError(
                "images is not served: this route reads texts; leave it out, or embed pictures with LLM.embed.",
                param="images",
            )
        given = self.texts_given if self.inputs is None else [_text_of(entry) for entry in self.inputs]
        if (self.texts_given is None) == (self.inputs is None):
            raise RequestError("The request needs either texts or inputs; give one of them.", param="texts")
        if not given or not all(isinstance(text, str) and text for text in given):
            raise RequestError(
                f"{self.text_field} must be a list of texts, none of them empty, with at least one entry; one of inputs has "
                "one part of the type 'text'.",
                param=self.text_field,
                code="invalid_type",
            )
        return list(given)

    def params(self, config: PoolingConfig | None) -> PoolingParams:
        """Return the parameters for one vector per text."""
        keep = self.truncate_prompt_tokens
        if self.truncate == "START":
            raise RequestError(
                "truncate is 'START', but of a longer text the first tokens stay; ask for 'END' or 'NONE'.",
                param="truncate",
            )
        if self.truncate == "NONE" and self.max_tokens is not None:
            raise RequestError(
                "max_tokens cuts texts, which truncate 'NONE' forbids; leave one out.", param="max_tokens"
            )
        if self.truncate != "NONE" and keep is None:
            keep = -1 if self.max_tokens is None else self.max_tokens
        given = super().params(config)
        return msgspec.structs.replace(given, dimensions=self.output_dimension, truncate_prompt_tokens=keep)

    def task_for(self, config: PoolingConfig | None) -> PoolingTask:
        """Return the task of one vector per text."""
        return "embed"

    def prompt_for(self, config: PoolingConfig) -> str | None:
        """Return the prompt for the input type; None for a model without prompts."""
        wanted = self.input_type
        if wanted is None:
            return None
        for name in PROMPTS.get(wanted, (wanted,)):
            if name in config.prompts:
                return name
        return "" if wanted in WITHOUT_PROMPT else wanted


def _text_of(entry: Any) -> Any:
    """Return the text of an entry with one part; None for any other entry."""
    parts = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
        return None
    return parts[0].get("text") if parts[0].get("type") == "text" else None


class Vectors(msgspec.Struct, omit_defaults=True):
    """The vectors of all texts, in each of the requested forms."""

    floats: list[list[float]] | UnsetType = msgspec.field(default=UNSET, name="float")
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET


class EmbedAnswer(msgspec.Struct, kw_only=True):
    """The answer to /v2/embed. The first version of the route returns plain vectors if no types are requested."""

    id: str
    embeddings: Vectors | list[list[float]]
    texts: list[str]
    meta: RerankMeta
    response_type: str = "embeddings_by_type"
