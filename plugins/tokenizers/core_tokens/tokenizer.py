"""The tokenizer: text to token ids and back.

Owns: loading from a directory or a vocabulary, encoding, decoding, special tokens. Never does: render chats, stream.
Called by: the engine's input and output processing, `LLM`, the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tokenizers
from tokenizers import models, normalizers

from core.api.errors import CheckpointError, RequestError
from core_tokens.chat.mode_templates import mode_template
from core_tokens.chat.templates import Templates, read_templates
from core_tokens.pieces import Spelling, piece_bytes, spelling_of
from core_tokens.plugged import NAMED, Plug, PluggedBackend
from core_tokens.tokenizer_config import read_tokenizer_config
from core_tokens.tokenizer_source import TokenizerSource
from core_tokens.vocabularies.vocabulary import build_tokenizer

NO_TOKENIZER = (
    "The server runs without a tokenizer (--skip-tokenizer-init): it takes token ids and gives token ids. Send the prompt as "
    "a list of token ids to /v1/completions, without stop strings and bad words; or start it without that argument."
)


class TokenizerSnapshot(msgspec.Struct, frozen=True):
    """A tokenizer as a message between processes.

    document: the library's JSON.
    bos_token_id, eos_token_id, pad_token_id, unk_token_id, chat_template, split_special_tokens, refusal,
        allows_control: see `Tokenizer`.
    plug: the plugin that is loaded instead of `document`, or None.
    """

    document: str
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    chat_template: str | None
    split_special_tokens: bool = False
    refusal: str = ""
    allows_control: bool = False
    plug: Plug | None = None


class PairEncoding(NamedTuple):
    """Two texts as one sequence of tokens.

    ids: of all tokens.
    type_ids: 0 for a token of the first text, 1 for one of the second; as many as `ids`.
    """

    ids: list[int]
    type_ids: list[int]


class Tokenizer:
    """A tokenizer; thread-safe for encoding and decoding.

    bos_token_id, eos_token_id, pad_token_id, unk_token_id: ids, or None.
    chat_template: Jinja source, or None.
    named_templates: further chat templates by name (`tool_use`, ...); a snapshot leaves them out.
    response_template: the checkpoint's own description of answers, or None; a snapshot leaves it out.
    split_special_tokens: special tokens written out in a text are text.
    refusal: if set, an error that says why there is no text; every token's text is then empty.
    allows_control: contents of messages may contain control tokens, see `core_tokens.content_encoding`.
    vocab_size: number of ids, with added tokens.
    largest_id: of all tokens.
    special_ids: ids that `skip_special_tokens` leaves out.
    spelling: how tokens spell bytes.
    content_encoders: kept by `core_tokens.content_encoding` for the texts of templates.
    strips_space: whether a text's first space belongs to the tokenizer.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer | PluggedBackend,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        unk_token_id: int | None = None,
        chat_template: str | None = None,
        named_templates: Mapping[str, str] | None = None,
        response_template: Any = None,
        split_special_tokens: bool = False,
        refusal: str = "",
    ) -> None:
        self.backend: Any = backend
        backend.encode_special_tokens = split_special_tokens
        self.split_special_tokens = split_special_tokens
        self.refusal = refusal
        self.allows_control = False
        self.named_templates = dict(named_templates or {})
        self.response_template = response_template
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.pad_token_id = pad_token_id
        self.unk_token_id = unk_token_id
        self.chat_template = chat_template
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.largest_id: int = max([self.vocab_size - 1, *added])
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.spelling: Spelling
        if isinstance(backend, PluggedBackend):
            self.spelling, self.strips_space = "plugged", backend.strips_space
        else:
            self.spelling, self.strips_space = spelling_of(backend)
        self.content_encoders: dict[tuple[str, ...], Any] = {}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_source(
        cls, source: TokenizerSource, override: str | None = None, mode: str = "auto", plug: Plug | None = None
    ) -> Tokenizer:
        """Return the tokenizer of a checkpoint, or of `override`: a directory with tokenizer files, or one of them.

        mode: selects the files, see `core_tokens.files.find_tokenizer_file`. plug: the plugin to load instead of reading
        files. Raises CheckpointError when there is none or it cannot be read, and PluginError.
        """
        place = override or source.directory
        if plug is not None:
            return cls._plugged(msgspec.structs.replace(plug, directory=place), source)
        if place is not None:
            return cls._from_files(Path(place).expanduser(), source, mode)
        vocabulary = source.vocabulary
        if vocabulary is None:
            raise CheckpointError("The checkpoint has no tokenizer. Name one with --tokenizer.")
        if mode in ("slow", "mistral"):
            raise CheckpointError(
                f"--tokenizer-mode {mode} reads files beside a model, and this checkpoint carries its tokenizer inside; leave "
                "it out, or name a directory with --tokenizer."
            )
        return cls(
            build_tokenizer(vocabulary),
            bos_token_id=vocabulary.bos_token_id,
            eos_token_id=vocabulary.eos_token_id,
            pad_token_id=vocabulary.pad_token_id,
            unk_token_id=vocabulary.unk_token_id,
            chat_template=mode_template(mode) or source.chat_template,
            named_templates=source.named_templates,
        )

    @classmethod
    def _from_files(cls, path: Path, source: TokenizerSource, mode: str) -> Tokenizer:
        from core_tokens.directory import (
            read_tokenizer,
        )  # readers of a dozen formats that GGUF does not need

        read = read_tokenizer(path, mode)
        templates = read.templates
        own = source.chat_template is not None
        return cls(
            read.backend,
            bos_token_id=read.named["bos_token"],
            eos_token_id=read.named["eos_token"],
            pad_token_id=read.named["pad_token"],
            unk_token_id=read.named["unk_token"],
            chat_template=mode_template(mode) or (source.chat_template if own else templates.default),
            named_templates=source.named_templates if own else templates.named,
            response_template=templates.response,
            split_special_tokens=read.split_special_tokens,
        )

    @classmethod
    def _plugged(cls, plug: Plug, source: TokenizerSource) -> Tokenizer:
        backend = PluggedBackend(plug)
        templates = Templates(source.chat_template, source.named_templates)
        if source.chat_template is None and plug.directory is not None and Path(plug.directory).is_dir():
            templates = read_templates(Path(plug.directory), read_tokenizer_config(Path(plug.directory)))
        template = backend.own.chat_template or templates.default
        made = cls(backend, chat_template=template, named_templates=templates.named)
        for name in NAMED:
            setattr(made, f"{name}_id", backend.own.named.get(name))
        return made

    @classmethod
    def absent(cls) -> Tokenizer:
        """Return a placeholder for models that only take and return ids: every text is empty, and encoding raises an
        error.
        """
        return cls(tokenizers.Tokenizer(models.BPE()), refusal=NO_TOKENIZER)

    @classmethod
    def restore(cls, snapshot: TokenizerSnapshot) -> Tokenizer:
        """Rebuild the tokenizer from another process's snapshot."""
        if snapshot.plug is None:
            backend: tokenizers.Tokenizer | PluggedBackend = tokenizers.Tokenizer.from_str(snapshot.document)
        else:
            backend = PluggedBackend(snapshot.plug)
        restored = cls(
            backend,
            bos_token_id=snapshot.bos_token_id,
            eos_token_id=snapshot.eos_token_id,
            pad_token_id=snapshot.pad_token_id,
            unk_token_id=snapshot.unk_token_id,
            chat_template=snapshot.chat_template,
            split_special_tokens=snapshot.split_special_tokens,
            refusal=snapshot.refusal,
        )
        restored.allows_control = snapshot.allows_control
        if snapshot.plug is not None and snapshot.plug.small_letters:
            restored.read_small_letters()
        return restored

    def read_small_letters(self) -> None:
        """Lower-case all texts from now on, except for special tokens spelled out in them."""
        lower = normalizers.Lowercase()
        if self.plug is not None:
            self.backend.plug = msgspec.structs.replace(self.plug, small_letters=True)
        own = self.backend.normalizer
        self.backend.normalizer = lower if own is None else normalizers.Sequence([lower, own])

    @cached_property
    def snapshot(self) -> TokenizerSnapshot:
        """Return the message from which another process rebuilds the tokenizer. The first call takes 30 ms for 50,000
        tokens.
        """
        return TokenizerSnapshot(
            document=self.backend.to_str(),
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            pad_token_id=self.pad_token_id,
            unk_token_id=self.unk_token_id,
            chat_template=self.chat_template,
            split_special_tokens=self.split_special_tokens,
            refusal=self.refusal,
            allows_control=self.allows_control,
            plug=self.plug,
        )

    @property
    def plug(self) -> Plug | None:
        """Return the plugin that encodes texts; None: the library does."""
        return self.backend.plug if isinstance(self.backend, PluggedBackend) else None

    @cached_property
    def longest_token(self) -> int:
        """Return the characters of the longest spelling in the vocabulary; no token stands for much more text. The
        first call is slow.
        """
        spellings = self.backend.get_vocab(with_added_tokens=True)
        return max(map(len, spellings), default=1)

    @property
    def special_texts(self) -> dict[str, int]:
        """Return the ids of all special tokens by their text."""
        return {self.token_text(index): index for index in sorted(self.special_ids)}

    @property
    def special_tokens(self) -> dict[str, str]:
        """Return the named special tokens for chat templates: `bos_token`, `eos_token`, ..."""
        named = {
            "bos_token": self.bos_token_id,
            "eos_token": self.eos_token_id,
            "pad_token": self.pad_token_id,
            "unk_token": self.unk_token_id,
        }
        tokens = {}
        for name, index in named.items():
            if index is not None:
                tokens[name] = self.backend.id_to_token(index) or ""
        return tokens

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens spelled out in it are recognized. Raises RequestError for lone
        surrogates.
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Return the token ids of several texts. Unlike the library's `encode`, this lets other Python threads run."""
        return [encoding.ids for encoding in self._encodings(list(texts), add_special_tokens)]

    def encode_pair(self, text: str, text_pair: str, add_special_tokens: bool = True) -> PairEncoding:
        """Encode two texts as one sequence, for cross-encoders. Raises RequestError for lone surrogates."""
        return self.encode_pairs([(text, text_pair)], add_special_tokens)[0]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], add_special_tokens: bool = True) -> list[PairEncoding]:
        """Encode several pairs, each as `encode_pair` does."""
        batch = self._encodings(list(pairs), add_special_tokens)
        return [PairEncoding(encoding.ids, encoding.type_ids) for encoding in batch]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return for each token of `encode` its first character and one past its last; equal for special tokens."""
        return list(self.backend.encode(text).offsets)

    def _encodings(self, texts: list[str] | list[tuple[str, str]], special: bool) -> list[tokenizers.Encoding]:
        if self.refusal:
            raise RequestError(self.refusal, param="prompt")
        try:
            found: list[tokenizers.Encoding] = self.backend.encode_batch_fast(texts, add_special_tokens=special)
            return found
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(
                f"The text is not valid Unicode ({error}); send whole characters.", param="prompt"
            ) from error

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Return the text of token ids; incomplete bytes become U+FFFD, unknown ids nothing.

        spaces_between_special_tokens: accepted for compatibility; these tokenizers never add spaces of their own.
        """
        if self.spelling == "other":
            return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        text = self.join_bytes(ids, skip_special_tokens).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_space else text

    def join_bytes(self, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
        """Return the concatenated bytes of all tokens, optionally without the special ones."""
        hidden = self.special_ids if skip_special_tokens else ()
        return b"".join([self.token_bytes(index) for index in ids if index not in hidden])

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, possibly part of a character. Empty for an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            if self.spelling == "plugged":
                return bytes(self.backend.token_bytes(token_id))
            # The library accepts only unsigned 32-bit numbers, and raises for others.
            in_range = 0 <= token_id < 1 << 32
            token = self.backend.id_to_token(token_id) if in_range else None
            known = b"" if token is None else piece_bytes(token, self.spelling)
            self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        """Return the text of one token; U+FFFD where it is part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")
