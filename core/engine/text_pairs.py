"""Two texts as one prompt, for models that read a query and a document together.

Owns: how they are joined (a template, the tokenizer, or one behind the other), and how a pair that is too long is cut.
Never does: run a request. Called by: `LLM.score`, the server's preparation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from core.api.errors import RequestError
from core.api.pooling import PoolingConfig
from core.tokens.chat_template import ChatTemplate
from core.tokens.tokenizer import Tokenizer

ROLES = ("query", "document")
"""Of the messages that a template for pairs writes."""
MOST_SPECIALS = 16
"""Special tokens in front of a text of a pair."""
MOST_CUTS = 8
"""Times that a document is cut in a template; where a cut falls changes how many tokens its rest is."""


class TextPair(NamedTuple):
    """Two texts as one prompt.

    text: None where the tokenizer joined them.
    token_ids: of both.
    second: the first token of the second text; 0 where they are one text.
    """

    text: str | None
    token_ids: list[int]
    second: int = 0

    def as_prompt(self, cache_salt: str | None = None) -> dict[str, Any]:
        """The form that the engine takes."""
        prompt: dict[str, Any] = {"prompt": self.text, "prompt_token_ids": self.token_ids, "cache_salt": cache_salt}
        if self.second:
            behind = len(self.token_ids) - self.second
            prompt["token_type_ids"] = [0] * self.second + [1] * behind
        return prompt


class TextPairs:
    """For one model.

    max_model_len: tokens that a pair may have.
    chat_template: Jinja source that the user gave, or None; it goes before the checkpoint's own, and that before what is
        known of the model.
    """

    def __init__(
        self, config: PoolingConfig, tokenizer: Tokenizer, max_model_len: int, chat_template: str | None = None
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        source = chat_template or _for_pairs(tokenizer.chat_template) or config.pair_template
        self._template = ChatTemplate(source, tokenizer.special_tokens) if source else None
        self._begin = source.partition("{")[0].strip() if source else ""

    def join(
        self, first: str, second: str, keep: int | None = None, instruction: str | None = None, param: str = "prompt"
    ) -> TextPair:
        """One prompt of two texts.

        keep: most tokens of it, -1: as many as the model takes; None: a longer one is refused.
        instruction: what a template tells the model to look for; None: what the template says.
        param: the field that errors about length name.
        Raises RequestError.
        """
        limit = self._max_model_len
        if keep is not None and keep > limit:
            raise RequestError(
                f"truncate_prompt_tokens is {keep}, but the model takes at most {limit} tokens; lower it.",
                param="truncate_prompt_tokens",
            )
        most = limit if keep is None or keep == -1 else keep
        is_written = bool(self._begin) and first.lstrip().startswith(self._begin)
        if self._template is not None and not is_written:
            pair = self._rendered(first, second, instruction, None if keep is None else most)
        elif instruction is not None:
            raise RequestError("instruction is of models with a template for pairs; leave it out.", param="instruction")
        elif self._config.joins_pairs or is_written:
            ids = self._tokenizer.encode(first + second)
            pair = TextPair(first + second, ids if keep is None else ids[:most])
        else:
            pair = self._encoded(first, second, None if keep is None else most)
        if len(pair.token_ids) > most:
            raise RequestError(
                f"The pair of texts has {len(pair.token_ids)} tokens, but the model takes at most {limit}. Shorten it, or "
                "have it cut: truncate_prompt_tokens -1.",
                param=param,
                code="context_length_exceeded",
            )
        return pair

    def _encoded(self, first: str, second: str, most: int | None) -> TextPair:
        """As the tokenizer joins them. most: tokens that are left; None: all."""
        encoding = self._tokenizer.encode_pair(first, second)
        ids, types = encoding.ids, encoding.type_ids
        if most is not None and len(ids) > most:
            ids, types = self._cut(first, second, most)
        ones = sum(types)
        return TextPair(None, ids, len(ids) - ones if 0 < ones < len(ids) else 0)

    def _cut(self, first: str, second: str, most: int) -> tuple[list[int], list[int]]:
        """Ids and types of the longest beginnings of both texts that fit: the longer one gives first."""
        one, other = self._tokenizer.encode_batch([first, second], add_special_tokens=False)
        whole = self._tokenizer.encode_pair(first, second)
        room = most - (len(whole.ids) - len(one) - len(other))
        if room < 1:
            raise RequestError(
                f"truncate_prompt_tokens is {most}, which leaves no text beside the special tokens of a pair; raise it.",
                param="truncate_prompt_tokens",
            )
        num_first, num_second = _shares(len(one), len(other), room)
        sides = (slice(num_first, len(one)), slice(num_second, len(other)))
        dropped: set[int] = set()
        position = 0
        for ids, left_out in zip((one, other), sides, strict=True):
            start = _find(whole.ids, ids, position)
            dropped.update(range(start + left_out.start, start + left_out.stop))
            position = start + len(ids)
        kept = [index for index in range(len(whole.ids)) if index not in dropped]
        return [whole.ids[index] for index in kept], [whole.type_ids[index] for index in kept]

    def _rendered(self, first: str, second: str, instruction: str | None, most: int | None) -> TextPair:
        """As the template writes them. most: tokens that are left, by cutting the document; None: all."""
        document = second
        for _ in range(MOST_CUTS):
            text = self._render(first, document, instruction)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if most is None or len(ids) <= most:
                return TextPair(text, ids)
            body = self._tokenizer.encode(document, add_special_tokens=False)
            room = len(body) - (len(ids) - most)
            if room < 1:
                break
            document = self._tokenizer.decode(body[:room]).rstrip("\ufffd")
        raise RequestError(
            f"The query and the template's own words leave no room for a document in {most} tokens; shorten the query.",
            param="truncate_prompt_tokens",
        )

    def _render(self, query: str, document: str, instruction: str | None) -> str:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": instruction})
        assert self._template is not None, "texts are rendered where there is a template"
        return self._template.render(messages)


def _for_pairs(template: str | None) -> str:
    """A template that writes queries and documents; empty for one that writes conversations."""
    if template is None:
        return ""
    return template if all(re.search(rf"""["']{role}["']""", template) for role in ROLES) else ""


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each of two texts stay: the shorter one is only cut once both have half."""
    half = room // 2
    if first <= half:
        return first, min(second, room - first)
    if second <= half:
        return min(first, room - second), second
    return (half, room - half) if first <= second else (room - half, half)


def _find(ids: Sequence[int], part: Sequence[int], start: int) -> int:
    """Where `part` stands in `ids`, from `start` on. Raises RequestError where it does not."""
    most = min(len(ids) - len(part), start + MOST_SPECIALS)
    for index in range(start, most + 1):
        if list(ids[index : index + len(part)]) == list(part):
            return index
    raise RequestError(
        "This model's tokenizer changes texts where it joins them, so the pair cannot be cut; leave truncate_prompt_tokens "
        "out.",
        param="truncate_prompt_tokens",
    )
