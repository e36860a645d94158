"""Prompts in the forms that users give: text, token ids, or a dictionary with either.

Owns: `PromptParser`, which parses prompts and tokenizes text, and the check of text that other fields of a request need
too. Never does: know lengths or templates. Called by: the input processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.api.config import ModelConfig
from core.api.errors import RequestError, nearest
from core.api.messages import MediaItem
from core.engine.token_ids import check_token_ids, pieces
from core_frontend.prompts.prompt_embeds import FLAGS, KEY, PLACEHOLDER, PromptEmbeds, read_embeds
from core_tokens.tokenizer import Tokenizer

EDGES = "edges"
"""Key of the positions of `EngineRequest.edges`, which those set that render conversations."""
MEDIA = "media"
"""Key of the items of `EngineRequest.media`, which those set that process pictures."""
PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt", "token_type_ids", KEY, FLAGS, EDGES, MEDIA)
MEDIA_KEYS = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
"""Keys of media, which a reader of media replaces by `MEDIA`; None and an empty mapping are accepted anywhere."""

PromptInput = str | Sequence[int] | Mapping[str, Any]
"""A prompt: text, token ids, or {"prompt": text} / {"prompt_token_ids": ids}, with an optional `cache_salt`; for a pair
of texts with `token_type_ids`, 0 for each token of the first one and 1 for each of the second.
"""


@dataclass(slots=True)
class Prompt:
    """A parsed prompt.

    second: for a pair of texts, the index of the second one's first token; 0: it is one text.
    embeds: embeddings that replace the tokens' own; None: there are none.
    knows_tokens: whether `token_ids` are those of the prompt, not placeholders for embeddings.
    edges, media: see `EngineRequest`.
    """

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None
    second: int = 0
    embeds: PromptEmbeds | None = None
    knows_tokens: bool = True
    edges: list[int] = field(default_factory=list)
    media: list[MediaItem] = field(default_factory=list)


class PromptParser:
    """The parser of prompts for one model. tokenizer: None accepts token ids only."""

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self._tokenizer = tokenizer

    def parse(self, prompt: PromptInput, *, copies: bool = True) -> Prompt:
        """Parse a prompt and tokenize its text. With both text and token ids, the ids count.

        copies: whether a list of token ids is copied; with a million of them, freeing the copy takes 10 ms.
        """
        if isinstance(prompt, str):
            return Prompt(prompt, self._encode(prompt))
        if isinstance(prompt, Mapping):
            return self._parse_mapping(prompt, copies)
        if isinstance(prompt, Sequence):
            return Prompt(None, self._token_ids(prompt))
        raise RequestError(
            f"The prompt is a {type(prompt).__name__}; expected a string, a list of token ids, or a dictionary with "
            "'prompt' or 'prompt_token_ids'.",
            param="prompt",
        )

    def _parse_mapping(self, prompt: Mapping[str, Any], copies: bool) -> Prompt:
        _check_keys(prompt)
        text = prompt.get("prompt")
        token_ids = prompt.get("prompt_token_ids")
        salt = prompt.get("cache_salt")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"'prompt' is a {type(text).__name__}; expected a string.", param="prompt")
        if salt is not None and not (isinstance(salt, str) and salt):
            raise RequestError(f"cache_salt is {salt!r}; expected a non-empty string.", param="cache_salt")
        embeds = read_embeds(prompt, self._model)
        if embeds is not None:
            return self._embedded(embeds, text, token_ids, salt)
        types = prompt.get("token_type_ids")
        if token_ids is not None:
            ids = self._token_ids(token_ids, copies)
            second = 0 if types is None else _second(types, len(ids))
            return Prompt(text, ids, salt, second, edges=_edges(prompt.get(EDGES)), media=prompt.get(MEDIA) or [])
        if types is not None:
            raise RequestError("token_type_ids are of 'prompt_token_ids'; give both.", param="token_type_ids")
        if text is None:
            raise RequestError("The prompt has neither 'prompt' nor 'prompt_token_ids'; give one.", param="prompt")
        return Prompt(text, self._encode(text), salt)

    def _embedded(self, embeds: PromptEmbeds, text: str | None, token_ids: Any, salt: str | None) -> Prompt:
        """Return a prompt of embeddings, and of token ids if the caller knows them."""
        salt = embeds.salted(salt)
        if token_ids is None:
            placeholders = [PLACEHOLDER] * embeds.num_tokens
            return Prompt(text, placeholders, salt, embeds=embeds, knows_tokens=False)
        ids = self._token_ids(token_ids)
        if len(ids) != embeds.num_tokens:
            raise RequestError(
                f"prompt_token_ids has {len(ids)} ids for the {embeds.num_tokens} positions of {KEY}; give one for each, or "
                "leave them out.",
                param="prompt_token_ids",
            )
        return Prompt(text, ids, salt, embeds=embeds)

    def _encode(self, text: str) -> list[int]:
        ids = need_tokenizer(self._tokenizer, "a text prompt", "prompt").encode(text)
        check_token_ids("prompt", ids, self._model)  # a tokenizer may know more tokens than the model
        return ids

    def _token_ids(self, token_ids: Any, copies: bool = True) -> list[int]:
        """Return the ids as a list of Python integers, each checked against the vocabulary."""
        param = "prompt_token_ids"
        if isinstance(token_ids, str | bytes) or not isinstance(token_ids, Sequence):
            raise RequestError(f"{param} is a {type(token_ids).__name__}; expected a list of integers.", param=param)
        ids = list(token_ids) if copies or not isinstance(token_ids, list) else token_ids
        # Counting takes half of the time of a set of the types.
        if not all(list(map(type, piece)).count(int) == len(piece) for piece in pieces(ids)):
            position, token = next((place, token) for place, token in enumerate(ids) if type(token) is not int)
            raise RequestError(f"{param}[{position}] is {token!r}; expected an integer token id.", param=param)
        check_token_ids(param, ids, self._model)
        return ids


def _check_keys(prompt: Mapping[str, Any]) -> None:
    for key, value in prompt.items():
        if key in MEDIA_KEYS:
            _refuse_media(key, value)
        elif key not in PROMPT_KEYS:
            raise RequestError(
                f"The prompt has the key {key!r}; expected one of {', '.join(PROMPT_KEYS)}."
                f"{nearest(str(key), PROMPT_KEYS)}",
                param="prompt",
            )


def _edges(given: Any) -> list[int]:
    """Return the edges of a prompt. Raises RequestError."""
    edges = [] if given is None else given
    if not isinstance(edges, list) or not all(type(edge) is int and edge >= 0 for edge in edges):
        raise RequestError(f"{EDGES} is {given!r}; expected positions in the prompt, from 0 on.", param=EDGES)
    return edges


def _refuse_media(key: str, value: Any) -> None:
    """Raise RequestError for media in a prompt."""
    if value is not None and value != {}:
        raise RequestError(
            f"The prompt has {key!r}, which `LLM` takes, for models whose pictures are served; leave it out.", param=key
        )


def _second(types: Any, count: int) -> int:
    """Return the index of the second of two texts. Raises RequestError. types: of `count` tokens."""
    if not isinstance(types, Sequence) or len(types) != count or any(kind not in (0, 1) for kind in types):
        raise RequestError(
            f"token_type_ids must be a list of 0 and 1, one for each of the {count} tokens.", param="token_type_ids"
        )
    ones = sum(types)
    if any(types[: count - ones]):
        raise RequestError(
            "token_type_ids has 0 behind 1; expected the tokens of the second text behind those of the first.",
            param="token_type_ids",
        )
    return count - ones if ones < count else 0


def as_batch(prompts: PromptInput | Sequence[PromptInput]) -> list[PromptInput]:
    """Return a single prompt (text, dictionary, or a list of integers) as a batch of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; expected a prompt or a list of prompts.", param="prompts"
        )
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def check_unicode(param: str, text: str) -> None:
    """Raise RequestError for an unpaired surrogate, which a Python string may hold, but no message and no hash."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds {text[error.start]!r} at character {error.start}, which is half of a character and cannot be "
            "encoded as UTF-8; send whole characters.",
            param=param,
        ) from error


def need_tokenizer(tokenizer: Tokenizer | None, what: str, param: str) -> Tokenizer:
    """Return the tokenizer. Raises RequestError, which says what it was needed for, if the model has none."""
    if tokenizer is None:
        raise RequestError(
            f"The model has no tokenizer, so {what} cannot be used; pass token ids, or name one with --tokenizer "
            "and leave --skip-tokenizer-init out.",
            param=param,
        )
    return tokenizer
