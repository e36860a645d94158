"""Two texts as one prompt, for models that read a query and a document together.

Owns: how they are joined (a template, the tokenizer, or concatenation), and how a pair that is too long is truncated.
Never does: run a request. Called by: `LLM.score`, the server's preparation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from core.api.errors import RequestError
from core.api.pooling import PoolingConfig
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.template_limits import Limits
from core_tokens.chat.written_text import WrittenText, plain
from core_tokens.content_encoding import ContentEncoder
from core_tokens.tokenizer import Tokenizer

ROLES = ("query", "document")
"""The roles of the messages that a template for pairs writes."""
MOST_SPECIALS = 16
"""Maximum number of special tokens before a text of a pair."""
SLOTS = ("\ue000instruction\ue000", "\ue000query\ue000", "\ue000document\ue000")
"""Placeholder contents, with which a template is rendered to find its own words around them."""
MOST_CUTS = 8
"""Maximum number of times that a document is cut in a template; the position of a cut changes how many tokens the rest
is.
"""


class TextPair(NamedTuple):
    """Two texts as one prompt.

    text: None if the tokenizer joined them.
    token_ids: of both.
    second: index of the second text's first token; 0 if they are one text.
    """

    text: str | None
    token_ids: list[int]
    second: int = 0

    def as_prompt(self, cache_salt: str | None = None) -> dict[str, Any]:
        """Return the prompt in the form that the engine takes."""
        prompt: dict[str, Any] = {"prompt": self.text, "prompt_token_ids": self.token_ids, "cache_salt": cache_salt}
        if self.second:
            behind = len(self.token_ids) - self.second
            prompt["token_type_ids"] = [0] * self.second + [1] * behind
        return prompt


class TextPairs:
    """The joiner of pairs for one model.

    max_model_len: maximum number of tokens of a pair.
    chat_template: Jinja source that the user gave, or None; it takes precedence over the checkpoint's own, and that
        over the built-in knowledge of the model.
    limits: of rendering it.
    """

    def __init__(
        self,
        config: PoolingConfig,
        tokenizer: Tokenizer,
        max_model_len: int,
        chat_template: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        source = chat_template or _for_pairs(tokenizer.chat_template) or config.pair_template
        self._template = ChatTemplate(source, tokenizer.special_tokens, limits=limits) if source else None
        self._begin = source.partition("{")[0].strip() if source else ""
        self._contents = ContentEncoder.of(tokenizer, [source or ""])

    def join(
        self, first: str, second: str, keep: int | None = None, instruction: str | None = None, param: str = "prompt"
    ) -> TextPair:
        """Join two texts into one prompt.

        keep: maximum number of its tokens, -1: as many as the model accepts; None: a longer one is refused.
        instruction: what a template tells the model to look for; None: the template's default.
        param: the field that errors about length name.
        Raises RequestError.
        """
        limit = self._max_model_len
        if keep is not None and keep > limit:
            raise RequestError(
                f"truncate_prompt_tokens is {keep}, but the model takes at most {limit} tokens; lower it.",
                param="truncate_prompt_tokens",
            )
        cut_to = limit if keep == -1 else keep
        pair = self._joined(first, second, instruction, cut_to)
        num_tokens = len(pair.token_ids)
        if num_tokens > (limit if cut_to is None else cut_to):
            raise RequestError(
                f"The pair of texts has {num_tokens} tokens, but the model takes at most {limit}. Shorten it, or "
                "have it cut: truncate_prompt_tokens -1.",
                param=param,
                code="context_length_exceeded",
            )
        return pair

    def _joined(self, first: str, second: str, instruction: str | None, most: int | None) -> TextPair:
        """Join by this model's template, its words or the tokenizer. most: tokens to keep; None: all."""
        is_written = bool(self._begin) and first.lstrip().startswith(self._begin)
        if self._template is not None and is_written and not self._tokenizer.allows_control:
            # The client wrote the template's words itself. The text is taken apart, so that control tokens come from
            # the template only.
            told, first, second = self._taken_apart(first + second) or (instruction, first, second)
            return self._rendered(first, second, told, most)
        if self._template is not None and not is_written:
            return self._rendered(first, second, instruction, most)
        if instruction is not None:
            raise RequestError("instruction is of models with a template for pairs; leave it out.", param="instruction")
        if not self._config.joins_pairs and not is_written:
            return self._encoded(first, second, most)
        text = first + second
        token_ids = self._tokenizer.encode(text) if is_written else self._contents.encode(text, add_special_tokens=True)
        return TextPair(text, token_ids[:most])

    def _taken_apart(self, text: str) -> tuple[str, str, str] | None:
        """Split a text that has the template's form into instruction, query and document; return None for another text."""
        instruction, query, document = SLOTS
        frame = plain(self._render(query, document, instruction))
        words: list[str] = []
        for slot in SLOTS:
            before, found, frame = frame.partition(slot)
            if not found:
                return None
            words.append(before)
        text = text.strip()
        begin, end = words[0].lstrip(), frame.rstrip()
        if not text.startswith(begin) or not text.endswith(end):
            return None
        body = text[len(begin) : len(text) - len(end)]
        told, has_query, rest = body.partition(words[1])
        asked, has_document, shown = rest.partition(words[2])
        return (told, asked, shown) if has_query and has_document else None

    def _encoded(self, first: str, second: str, most: int | None) -> TextPair:
        """Join by the tokenizer. most: tokens to keep; None: all."""
        encoding = self._contents.encode_pair(first, second)
        ids, types = encoding.ids, encoding.type_ids
        if most is not None and len(ids) > most:
            ids, types = self._cut(first, second, most)
        num_second = sum(types)
        are_two = 0 < num_second < len(ids)
        return TextPair(None, ids, len(ids) - num_second if are_two else 0)

    def _cut(self, first: str, second: str, most: int) -> tuple[list[int], list[int]]:
        """Return ids and types of the longest beginnings of both texts that fit: the longer text is truncated first."""
        one, other = self._contents.encode(first), self._contents.encode(second)
        whole = self._contents.encode_pair(first, second)
        num_specials = len(whole.ids) - len(one) - len(other)
        room = most - num_specials
        if room < 1:
            raise RequestError(
                f"truncate_prompt_tokens is {most}, which leaves no text beside the special tokens of a pair; raise it.",
                param="truncate_prompt_tokens",
            )
        shares = _shares(len(one), len(other), room)
        dropped: set[int] = set()
        end = 0
        for ids, share in zip((one, other), shares, strict=True):
            start = _find(whole.ids, ids, end)
            end = start + len(ids)
            dropped.update(range(start + share, end))
        kept = [index for index in range(len(whole.ids)) if index not in dropped]
        return [whole.ids[index] for index in kept], [whole.type_ids[index] for index in kept]

    def _rendered(self, first: str, second: str, instruction: str | None, most: int | None) -> TextPair:
        """Join by the template. most: tokens to keep, by truncating the document; None: all."""
        document = second
        for _ in range(MOST_CUTS):
            text = self._render(first, document, instruction)
            ids = self._contents.encode(text)
            if most is None or len(ids) <= most:
                return TextPair(plain(text), ids)
            body = self._contents.encode(document)
            too_many = len(ids) - most
            room = len(body) - too_many
            if room < 1:
                break
            document = self._tokenizer.decode(body[:room]).rstrip("\ufffd")
        raise RequestError(
            f"The query and the template's own words leave no room for a document in {most} tokens; shorten the query.",
            param="truncate_prompt_tokens",
        )

    def _render(self, query: str, document: str, instruction: str | None) -> WrittenText:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": instruction})
        assert self._template is not None, "texts are rendered where there is a template"
        return self._template.render(messages)


def _for_pairs(template: str | None) -> str:
    """Return a template that writes queries and documents; empty for one that writes conversations."""
    if template is None:
        return ""
    names_all = all(re.search(rf"""["']{role}["']""", template) for role in ROLES)
    return template if names_all else ""


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each of two texts stay: the shorter one is only truncated once both have half."""
    half = room // 2
    if first <= half:
        return first, min(second, room - first)
    if second <= half:
        return min(first, room - second), second
    return (half, room - half) if first <= second else (room - half, half)


def _find(ids: Sequence[int], part: Sequence[int], start: int) -> int:
    """Return the index of `part` in `ids`, from `start` on. Raises RequestError if it does not occur."""
    wanted = list(part)
    last = min(len(ids) - len(wanted), start + MOST_SPECIALS)
    for index in range(start, last + 1):
        found = list(ids[index : index + len(wanted)])
        if found == wanted:
            return index
    raise RequestError(
        "This model's tokenizer changes texts where it joins them, so the pair cannot be cut; leave truncate_prompt_tokens "
        "out.",
        param="truncate_prompt_tokens",
    )
