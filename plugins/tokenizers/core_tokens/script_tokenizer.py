"""The tokenizer for scripts: transformers' methods and defaults over the engine's own tokenizer.

Owns: `ScriptTokenizer`. Never does: pad, create tensors, or add tokens; it rejects these options by name. Called by:
users, through `LLM.get_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.api.errors import RequestError, nearest
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.known_templates import known_templates
from core_tokens.chat.templates import TOOL_TEMPLATE
from core_tokens.chat.written_text import WrittenText, plain
from core_tokens.content_encoding import ContentEncoder
from core_tokens.tokenizer import Tokenizer

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "padding": (False, "do_not_pad"),
    "truncation": (False, "do_not_truncate"),
    "max_length": (),
    "return_tensors": (),
    "return_attention_mask": (True, False),
    "return_dict": (False,),
    "clean_up_tokenization_spaces": (False,),
    "text_pair": (),
}
"""Options of transformers' methods, and the values besides None that change nothing."""


def chat_template_of(tokenizer: Tokenizer, given: str | None, media: Mapping[str, str] | None = None) -> ChatTemplate:
    """Return the template that renders conversations: `given` as source, as a name of the checkpoint's or of ours, else the
    checkpoint's default.

    media: see `ChatTemplate`.
    """
    named = tokenizer.named_templates
    special = tokenizer.special_tokens
    if given:
        return ChatTemplate({**known_templates(), **named}.get(given, given), special, media=media)
    return ChatTemplate(tokenizer.chat_template, special, named.get(TOOL_TEMPLATE), media=media)


class Encoding(dict[str, Any]):
    """`input_ids` and `attention_mask`, as keys and as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"'Encoding' has no attribute '{name}'; it has {', '.join(self)}")
        return self[name]


class ScriptTokenizer:
    """transformers' methods over a tokenizer of the engine.

    tokenizer: the engine's own, with methods of its own.
    bos_token_id, eos_token_id, pad_token_id, unk_token_id: ids, or None; the same without `_id` is the token's text.
    chat_template: Jinja source, or None.
    vocab_size: number of ids, with added tokens.
    """

    is_fast = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.bos_token_id = tokenizer.bos_token_id
        self.eos_token_id = tokenizer.eos_token_id
        self.pad_token_id = tokenizer.pad_token_id
        self.unk_token_id = tokenizer.unk_token_id
        named = tokenizer.special_tokens
        self.bos_token = named.get("bos_token")
        self.eos_token = named.get("eos_token")
        self.pad_token = named.get("pad_token")
        self.unk_token = named.get("unk_token")
        self.chat_template = tokenizer.chat_template
        self.vocab_size = tokenizer.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def all_special_ids(self) -> list[int]:
        """Return the ids of all special tokens, in order."""
        return sorted(self.tokenizer.special_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        """Return the spellings of all special tokens."""
        return self._spellings(self.all_special_ids)

    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True, **options: Any) -> Encoding:
        """Return the token ids of a text, or of each of several."""
        _refuse("__call__", options)
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return Encoding(input_ids=ids, attention_mask=[1] * len(ids))
        batch = self.tokenizer.encode_batch(list(text), add_special_tokens)
        return Encoding(input_ids=batch, attention_mask=[[1] * len(ids) for ids in batch])

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """Return the token ids of a text."""
        _refuse("encode", options)
        return self.tokenizer.encode(text, add_special_tokens)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Return the token ids of several texts."""
        return self.tokenizer.encode_batch(texts, add_special_tokens)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False, **options: Any) -> str:
        """Return the text of token ids, including special tokens unless they are skipped."""
        _refuse("decode", options)
        return self.tokenizer.decode(_as_list(token_ids), skip_special_tokens)

    def batch_decode(
        self, sequences: Iterable[int | Iterable[int]], skip_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        """Return the texts of several sequences."""
        return [self.decode(ids, skip_special_tokens, **options) for ids in sequences]

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """Return the tokens of a text in the vocabulary's spelling."""
        return self._spellings(self.tokenizer.encode(text, add_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        """Return ids by the vocabulary's spelling, including added tokens."""
        return dict(self.tokenizer.backend.get_vocab(with_added_tokens=True))

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of added tokens by their spelling."""
        added = self.tokenizer.backend.get_added_tokens_decoder()
        return {token.content: index for index, token in added.items()}

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the vocabulary's spelling of an id, or of each of several; None for an unknown id."""
        if isinstance(ids, int):
            return self.tokenizer.backend.id_to_token(ids)
        hidden = self.tokenizer.special_ids if skip_special_tokens else ()
        return self._spellings([index for index in ids if index not in hidden])

    def _spellings(self, ids: Iterable[int]) -> list[Any]:
        return [self.tokenizer.backend.id_to_token(index) for index in ids]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a spelling, or of each of several; the unknown token's for an unknown spelling."""
        if isinstance(tokens, str):
            found = self.tokenizer.backend.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens in the vocabulary's spelling."""
        known = [index for index in self.convert_tokens_to_ids(tokens) if index is not None]
        return self.tokenizer.decode(known, skip_special_tokens=False)

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the prompt of a conversation, or of each of several: token ids, or text with `tokenize` false.

        Control tokens spelled out in contents stay text in the ids. In the text they cannot be distinguished from the
        template's own.
        return_dict: an `Encoding` instead of token ids.
        kwargs: passed to the template. Raises RequestError when there is no template, or when it refuses.
        """
        shared = {name: kwargs.pop(name) for name in list(kwargs) if name in NEUTRAL}
        _refuse("apply_chat_template", {**shared, **(tokenizer_kwargs or {})})
        template = chat_template_of(self.tokenizer, chat_template)
        single = bool(conversation) and isinstance(conversation[0], Mapping)
        texts: list[WrittenText] = []
        for messages in [conversation] if single else conversation:
            text = template.render(
                list(messages),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                documents=documents,
                **kwargs,
            )
            texts.append(text)
        if not tokenize:
            shown = [plain(text) for text in texts]
            return shown[0] if single else shown
        contents = ContentEncoder.of(self.tokenizer, template.sources)
        batch = [contents.encode(text) for text in texts]  # the template wrote the special tokens itself
        if not return_dict:
            return batch[0] if single else batch
        masks = [[1] * len(ids) for ids in batch]
        return Encoding(input_ids=batch[0] if single else batch, attention_mask=masks[0] if single else masks)


def _as_list(token_ids: int | Iterable[int]) -> list[int]:
    """Return ids as Python integers, also from an array or a tensor."""
    if isinstance(token_ids, int):
        return [token_ids]
    return [int(index) for index in token_ids]


def _refuse(method: str, options: Mapping[str, Any]) -> None:
    """Raise RequestError for an option with an effect that is not supported."""
    for name, value in options.items():
        if value is None or (name in NEUTRAL and value in NEUTRAL[name]):
            continue
        if name not in NEUTRAL:
            raise RequestError(f"{method}: unknown option '{name}'.{nearest(name, NEUTRAL)}", param=name)
        raise RequestError(
            f"{method}: {name}={value!r} is not served: texts become plain lists of token ids, neither padded nor cut. Leave "
            "it out, or use transformers' AutoTokenizer.",
            param=name,
        )
