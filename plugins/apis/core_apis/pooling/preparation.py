"""Conversion of the body of a pooling request into prompts for the engine.

Owns: the texts of a body one by one, preceded by a named prompt, or as pairs that a model reads together. Never does:
decode a body, or pool. Called by: the rows of `core_apis.pooling.bodies`.
"""

from __future__ import annotations

import functools
from typing import Any

from core.api.errors import RequestError
from core_apis.field_names import own_names
from core_apis.pooling.conversations import ConversationRenderer
from core_apis.prepare.amounts import check_amount, check_choices, check_numbers
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparedPooling, Prompt
from core_apis.protocol.pairs import PairBody, RerankRequest
from core_apis.protocol.pooled_conversation import PooledConversation
from core_apis.protocol.pooling import PoolingBody, Text
from core_frontend.api.late_chunking import LateChunkingMetadata
from core_frontend.api.pooling_params import PoolingParams
from core_frontend.prompts.late_chunks import late_chunks
from core_frontend.prompts.pooling_input import NO_TOKENS, resolved
from core_frontend.prompts.text_pairs import TextPairs, partnered, reads_pairs


class PoolingPreparation:
    """The preparation of pooling requests for one server. preparation: the steps that all bodies have in common."""

    def __init__(self, preparation: Preparation) -> None:
        self._limits = preparation.limits
        self._settings = preparation.settings
        self._tokenizer = preparation.tokenizer
        self._texts = preparation.texts
        self._conversations = ConversationRenderer(preparation)

    def prepare(self, body: Any, model: str) -> PreparedPooling[Any]:
        """Prepare a decoded body. model: the name to report. Raises RequestError."""
        pooling = self._settings.pooling
        pairs = self._pairs if isinstance(body, PairBody) else None
        names = body.field_names
        with own_names(names):
            params = body.params(pooling)
            params.verify()
            texts = self._given(body)
            check_choices(self._settings, texts, 1)
            prompts = self._single(body, texts, params) if pairs is None else self._joined(body, pairs)
            lens = [len(prompt.token_ids) for prompt in prompts]
            check_amount(self._settings, NO_TOKENS, lens)
            if pooling is not None:
                keep = params.truncate_prompt_tokens
                most = self._settings.max_model_len if keep in (None, -1) else keep
                check_numbers(self._settings, resolved(params, pooling), [min(length, most) for length in lens])
        body.metadata = None  # it may hold anything, and changes nothing
        body.forget()
        chunks = params.late_chunking_params
        return PreparedPooling(
            body=body,
            model=model,
            params=params,
            prompts=prompts,
            names=names,
            pairs=pairs is not None,
            labels=() if pooling is None else pooling.labels,
            parts=[] if chunks is None else [self._parts(prompt, chunks.chunk_size) for prompt in prompts],
        )

    def _parts(self, prompt: Prompt, size: int) -> LateChunkingMetadata:
        """Return the parts of a text.

        Their characters are known if its tokens are those that the tokenizer gives for it.
        """
        spans = None if prompt.text is None else self._tokenizer.spans(prompt.text)
        known = spans is not None and len(spans) == len(prompt.token_ids)
        return late_chunks(len(prompt.token_ids), size, spans if known else None)

    @functools.cached_property
    def _pairs(self) -> TextPairs | None:
        """Return the object that makes one prompt of two texts; None if they are pooled one by one.

        Raises RequestError.
        """
        pooling = self._settings.pooling
        if pooling is None or not reads_pairs(pooling, "/classify and /pooling"):
            return None
        template = self._settings.pair_template
        return TextPairs(pooling, self._tokenizer, self._settings.max_model_len, template, self._limits)

    def _given(self, body: PoolingBody) -> list[Text]:
        """Return the texts of a body, each preceded by the prompt that the body names. Raises RequestError."""
        texts = body.texts()
        pooling = self._settings.pooling
        if pooling is None:
            return texts
        named = body.prompt_for(pooling)
        front = pooling.prompt(named)
        if not front:
            return texts
        if named is not None and any(isinstance(text, list) for text in texts):
            raise RequestError("prompt_name is of texts, and token ids are given; leave it out.", param="prompt_name")
        return [_introduced(text, front, is_named=named is not None) for text in texts]

    def _single(self, body: PoolingBody, texts: list[Text], params: PoolingParams) -> list[Prompt]:
        """Return a prompt for each text."""
        if isinstance(body, PairBody) and body.instruction is not None:
            raise RequestError("instruction is of models with a template for pairs; leave it out.", param="instruction")
        if isinstance(body, RerankRequest):
            query, *documents = texts
            texts = [query, *(self._shortened(document, body.max_tokens_per_doc) for document in documents)]
        special = body.add_special_tokens is not False
        is_cut = params.truncate_prompt_tokens is not None
        prompts: list[Prompt] = []
        for text in texts:
            if isinstance(text, PooledConversation):
                prompts.append(self._conversations.prompt(text, body.add_special_tokens, is_cut=is_cut))
            elif isinstance(text, str):
                shown = self._texts.first_part(text) if is_cut else text
                prompts.append(Prompt(shown, self._texts.encode(shown, special)))
            else:
                prompts.append(Prompt(None, text))
        return prompts

    def _joined(self, body: PairBody, pairs: TextPairs) -> list[Prompt]:
        """Return a prompt for each pair of texts."""
        if body.add_special_tokens is not None:
            raise RequestError(
                "add_special_tokens is not of pairs of texts, which the model reads in one form; leave it out.",
                param="add_special_tokens",
            )
        keep = body.truncate_prompt_tokens
        most = body.max_tokens_per_doc if isinstance(body, RerankRequest) else None
        prompts: list[Prompt] = []
        for first, second in self._pairs_of(body):
            query = self._bounded(first, keep)
            document = self._bounded(self._shortened(second, most), keep)
            pair = pairs.join(query, document, keep, body.instruction)
            prompts.append(Prompt(pair.text, pair.token_ids, pair.second))
        return prompts

    def _bounded(self, text: str, keep: int | None) -> str:
        """Cut a text to the characters that can matter.

        Raises RequestError for one that cannot fit if nothing is truncated.
        """
        if keep is not None:
            return self._texts.first_part(text)
        self._texts.check_size(text)
        return text

    def _pairs_of(self, body: PairBody) -> list[tuple[str, str]]:
        """Return the pairs of a body.

        Their total text is limited, because one query may come with each of many documents.
        """
        left, right = body.sides()
        found: list[tuple[str, str]] = []
        num_characters = 0
        for first, second in zip(partnered(left, right), right, strict=True):
            if not isinstance(first, str) or not isinstance(second, str):
                raise RequestError(
                    "This model reads pairs of texts, so both must be strings, without pictures.", param=body.text_field
                )
            num_characters += len(first) + len(second)
            found.append((first, second))
        most = self._settings.limits.max_body_size
        if num_characters > most:
            raise RequestError(
                f"The pairs have {num_characters} characters in all, the query counted once a document; at most {most} fit one "
                "request (--max-body-size). Send fewer documents at once.",
                param=body.text_field,
            )
        return found

    def _shortened(self, text: Any, most: int | None) -> Any:
        """Truncate a text to its first `most` tokens; token ids are returned as they are."""
        if most is not None and isinstance(text, PooledConversation):
            raise RequestError(
                "max_tokens_per_doc cuts texts, and a document has parts; leave it out.", param="max_tokens_per_doc"
            )
        if most is None or not isinstance(text, str):
            return text
        return self._texts.first_tokens(text, most)


def _introduced(text: Text, front: str, *, is_named: bool) -> Text:
    """Return a text with a prompt in front; token ids are returned as they are. is_named: whether the request names it."""
    if isinstance(text, PooledConversation):
        return text.introduced(front, is_named=is_named)
    return front + text if isinstance(text, str) else text
