"""Bodies of /v1/embeddings, /pooling and /classify, and the common part of all bodies with texts to pool.

Owns: their Structs and the checks that need no model. Called by: `pairs`, the preparation and the document of bodies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from core.api.errors import RequestError
from core.api.pooling import PoolingConfig
from core_apis.protocol.messages import Message
from core_apis.protocol.number_formats import Endianness, NumberFormat
from core_apis.protocol.pooled_conversation import PooledConversation
from core_apis.protocol.sampling import Int32, RequestId, ServiceTier
from core_frontend.api.pooling_params import LateChunkingParams, PoolingParams, PoolingTask

TextFormat = Literal["float", "base64", "binary", "ubinary"]
EncodingFormat = TextFormat | Literal["bytes", "bytes_only"]
NO_PROCESSOR = "data is for an IO processor, and the server has none (--io-processor-plugin); send input."
FORMAT_NAMES = ("encoding_format", "encoding_type", "embedding_type")
OF_MESSAGES = (
    "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "mm_processor_kwargs",
)  # fmt: skip
OF_NUMBERS = ("embed_dtype", "endianness", "late_chunking_params", "prompt_name")

Text = str | list[int] | PooledConversation
"""One text, its token ids, or a conversation."""


class PoolingBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that all of these requests share. None always means: not given.

    `user` names the user of the request; `metadata` is accepted and changes nothing: OpenAI's field for accounting.
    """

    model: str | None = None
    truncate_prompt_tokens: Int32 | None = None
    add_special_tokens: bool | None = None
    priority: Int32 | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    cache_salt: str | None = None
    request_id: RequestId | None = None
    service_tier: ServiceTier | None = None
    user: Any = None
    metadata: Any = None

    @property
    def text_field(self) -> str:
        """Return the name of the field for errors about a text."""
        return "input"

    def texts(self) -> list[Text]:
        """Return everything to pool, in order; no text is empty. Raises RequestError."""
        raise NotImplementedError

    def task_for(self, config: PoolingConfig | None) -> PoolingTask | None:
        """Return the task of the texts; None: the body names none. Raises RequestError.

        config: of the model; None: it generates text, and the engine will refuse.
        """
        raise NotImplementedError

    def params(self, config: PoolingConfig | None) -> PoolingParams:
        """Return the pooling parameters: the task, and the body's fields of the same names. Raises RequestError."""
        given = {name: getattr(self, name, None) for name in PoolingParams.__struct_fields__}
        return PoolingParams(**given | {"task": self.task_for(config)})

    @property
    def field_names(self) -> dict[str, str]:
        """Return the field names for errors of later steps; see `core_apis.field_names`."""
        return {"prompt_token_ids": self.text_field, "prompt": self.text_field}

    def prompt_for(self, config: PoolingConfig) -> str | None:
        """Return the name of the prompt put before each text; None: the default one, if there is one."""
        return ""

    def forget(self) -> None:
        """Drop what the answer does not need, since pictures are large."""


class ConversingBody(PoolingBody, forbid_unknown_fields=True, kw_only=True):
    """A body that takes a conversation in place of its `input`.

    input: a text, token ids, or a list of either.
    messages: the conversation, whose parts may be pictures where the model sees them; it is pooled as one text.
    add_generation_prompt: whether the prompt ends where an answer would begin; None means false.
    """

    input: str | list[Any] | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None

    def texts(self) -> list[Text]:
        """Return the input as a list, or the conversation in its place. Raises RequestError."""
        if self.messages is None:
            alone = next((name for name in OF_MESSAGES if getattr(self, name) is not None), None)
            if alone is not None:
                raise RequestError(f"{alone} is of messages, and the request has none; leave it out.", param=alone)
            return texts_of("input", self.input)
        if self.input is not None:
            raise RequestError("The request has both input and messages; give one of them.", param="messages")
        given = {name: getattr(self, name) for name in OF_MESSAGES}
        return [PooledConversation(param="messages", messages=self.messages, **given)]

    def forget(self) -> None:
        """Drop the messages."""
        self.messages = None


class EmbeddingRequest(ConversingBody, forbid_unknown_fields=True, kw_only=True):
    """Texts to embed, or a conversation (`ConversingBody`).

    encoding_format: numbers as JSON (float); base64 of them; one bit per number (whether it is positive), packed into
        8-bit integers, signed (binary) or unsigned (ubinary); or the body is all vectors concatenated (bytes, with a
        header `metadata` that gives the position of each, or bytes_only, without it). Jina calls it encoding_type or
        embedding_type.
    embed_dtype, endianness: of base64 and bytes; float32, little-endian by default.
    prompt_name: name of the prompt in the checkpoint's files that is put before each text; empty: none.
    late_chunking_params: for token vectors, the number of tokens whose mean replaces their vectors.
    """

    encoding_format: EncodingFormat | None = None
    encoding_type: TextFormat | None = None
    embedding_type: TextFormat | None = None
    embed_dtype: NumberFormat | None = None
    endianness: Endianness | None = None
    prompt_name: str | None = None
    dimensions: Int32 | None = None
    use_activation: bool | None = None
    normalize: bool | None = None
    late_chunking_params: LateChunkingParams | None = None

    def prompt_for(self, config: PoolingConfig) -> str | None:
        """Return the body's prompt name."""
        return self.prompt_name

    def task_for(self, config: PoolingConfig | None) -> PoolingTask | None:
        """Return the task of one vector per text, or what the model usually returns instead."""
        task = "embed" if config is None else config.vectors
        if task == "token_embed" and self.encoding_format == "base64":
            raise RequestError(
                "encoding_format is 'base64', which cannot tell how many vectors a text has; this server gives one for each "
                "token (--pooler-config.task token_embed). Ask for 'float' or 'bytes'.",
                param="encoding_format",
            )
        return task

    def params(self, config: PoolingConfig | None) -> PoolingParams:
        """Return the parameters, once the body has one number format."""
        self._settle_format()
        if self.encoding_format in (None, "float", "binary", "ubinary"):
            for name in ("embed_dtype", "endianness"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name} is of the encoding_format base64 and bytes; leave it out.", param=name)
        return super().params(config)

    def _settle_format(self) -> None:
        """Merge the three names of the format into one. Raises RequestError if they differ."""
        given = {name: getattr(self, name) for name in FORMAT_NAMES if getattr(self, name) is not None}
        if len(set(given.values())) > 1:
            raise RequestError(
                f"{' and '.join(given)} are names of the same, and differ; leave one out.", param=max(given)
            )
        self.encoding_format = next(iter(given.values()), None)


class PoolingRequest(EmbeddingRequest, forbid_unknown_fields=True, kw_only=True):
    """Texts to pool.

    task: a vector per text (embed) or per token (token_embed), or the classes of either (classify, token_classify);
        None: the first of these that the model supports. activation: an older name of use_activation.
    data: for the server's IO processor, which makes the input of it, and the answer; from then on it is text of JSON.
    """

    task: PoolingTask | None = None
    activation: bool | None = None
    data: Any = msgspec.UNSET

    def texts(self) -> list[Text]:
        """Return the input as a list. Raises RequestError for data that no IO processor has made prompts of."""
        if self.data is msgspec.UNSET:
            return super().texts()
        if self.input is None:
            raise RequestError(NO_PROCESSOR, param="data")
        names = (*FORMAT_NAMES, *OF_NUMBERS, "messages")
        given = [name for name in names if getattr(self, name) is not None]
        if given:
            raise RequestError(
                f"{given[0]} is of an answer of numbers, and the IO processor makes the answer to data; leave it out.",
                param=given[0],
            )
        return super().texts()

    def task_for(self, config: PoolingConfig | None) -> PoolingTask | None:
        """Return the body's task, or the model's first."""
        return config.tasks[0] if self.task is None and config is not None else self.task


class ClassifyRequest(ConversingBody, forbid_unknown_fields=True, kw_only=True):
    """Texts to classify, or a conversation (`ConversingBody`).

    use_activation: whether numbers become probabilities; activation: its
        older name.
    """

    use_activation: bool | None = None
    activation: bool | None = None

    def task_for(self, config: PoolingConfig | None) -> PoolingTask:
        """Return the task of the classes of texts."""
        return "classify"


def texts_of(name: str, given: Any) -> list[Text]:
    """Return the value of a field (a text, token ids, or a list of either) as a list. Raises RequestError."""
    if given is None:
        raise RequestError(f"The field '{name}' is missing; the request needs it.", param=name, code="missing_field")
    is_list = isinstance(given, list) and bool(given) and isinstance(given[0], str | list)
    items = given if is_list else [given]
    for item in items:
        if item in ("", []):
            raise RequestError(f"{name} is empty, or has an empty entry; give text.", param=name, code="empty_prompt")
        is_ids = isinstance(item, list) and all(type(token) is int and token >= 0 for token in item)
        if not isinstance(item, str) and not is_ids:
            raise RequestError(
                f"{name} must be a string, a list of strings, a list of token ids (integers from 0), or a list of such "
                "lists.",
                param=name,
                code="invalid_type",
            )
    return list(items)
