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
from core_apis.protocol.pooled_conversation import PooledConversation, as_message, entry_of
from core_apis.protocol.pooling import PoolingBody, Text
from core_apis.protocol.sampling import Int32
from core_frontend.api.pooling_params import PoolingParams
from core_media.reading.parts import placed_picture

VectorType = Literal["float", "binary", "ubinary", "base64"]
"""Forms of numbers.

binary and ubinary have one bit per number (whether it is positive), packed into signed or unsigned 8-bit integers.
"""

PROMPTS = {"search_query": ("search_query", "query"), "search_document": ("search_document", "document", "passage")}
"""Names of prompts in checkpoints for each input type, in the order in which they are tried."""
WITHOUT_PROMPT = ("search_query", "search_document", "classification", "clustering", "image")
"""Cohere's input types that a model without a prompt for them accepts as they are."""


class EmbedRequest(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """What to embed: `texts`, `images`, or `inputs`, each of which has parts: texts and pictures.

    images: data URLs, or URLs from hosts that the server may fetch from.
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
        return next((name for name in ("inputs", "images") if getattr(self, name) is not None), "texts")

    @property
    def field_names(self) -> dict[str, str]:
        """Return Cohere's names of parameters, for errors."""
        own = {"dimensions": "output_dimension", "truncate_prompt_tokens": "max_tokens", "prompt_name": "input_type"}
        return {**super().field_names, **own, "messages": self.text_field}

    @property
    def types(self) -> list[VectorType]:
        """Return the number forms that the answer has."""
        return self.embedding_types or ["float"]

    def texts(self) -> list[Text]:
        """Return everything to embed. Raises RequestError."""
        given = {"texts": self.texts_given, "inputs": self.inputs, "images": self.images}
        named = [name for name, entries in given.items() if entries is not None]
        if len(named) != 1:
            raise RequestError("The request needs either texts, inputs or images; give one of them.", param="texts")
        [name] = named
        if name == "inputs":
            return [
                entry_of(entry, f"inputs[{index}]", "inputs") for index, entry in enumerate(_list(name, self.inputs))
            ]
        if name == "images":
            return [_picture(entry, f"images[{index}]") for index, entry in enumerate(_list(name, self.images))]
        texts = _list(name, self.texts_given)
        if not all(isinstance(text, str) and text for text in texts):
            raise _no_list(name)
        return list(texts)

    def forget(self) -> None:
        """Keep the texts alone, which the answer repeats as they came; there are none of `images`."""
        shown = [text.text_alone if isinstance(text, PooledConversation) else str(text) for text in self.texts()]
        self.texts_given = [] if self.images is not None else shown
        self.inputs = self.images = None

    @property
    def shown(self) -> list[str]:
        """Return the texts that the answer repeats."""
        return self.texts_given or []

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


def _list(name: str, entries: list[Any] | None) -> list[Any]:
    """Return the entries of a field. Raises RequestError where there is none."""
    if not entries:
        raise _no_list(name)
    return entries


def _no_list(name: str) -> RequestError:
    expected = {
        "texts": "texts, none of them empty",
        "inputs": "objects with a 'content', which is a list of parts",
        "images": "pictures as data URLs",
    }
    return RequestError(
        f"{name} must be a list of {expected[name]}, with at least one entry.", param=name, code="invalid_type"
    )


def _picture(url: Any, place: str) -> Text:
    """Return an entry of `images`."""
    return as_message([placed_picture(url, place, "image_url")], "images")


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
