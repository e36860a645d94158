"""The tokenizer: text to token ids and back.

Owns: loading from a directory or a vocabulary, encoding, decoding, special tokens. Never does: render chats, stream.
Called by: the engine's input and output processing, `LLM`, the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from core.api.checkpoint import TokenizerSource
from core.api.errors import CheckpointError, RequestError
from core.tokens.pieces import piece_bytes, spelling_of
from core.tokens.vocabulary import build_tokenizer


class TokenizerSnapshot(msgspec.Struct, frozen=True):
    """A tokenizer as a message.

    document: the library's JSON.
    bos_token_id, eos_token_id, pad_token_id, unk_token_id, chat_template: see `Tokenizer`.
    """

    document: str
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    unk_token_id: int | None
    chat_template: str | None


class Tokenizer:
    """Thread-safe for encoding and decoding.

    bos_token_id, eos_token_id, pad_token_id, unk_token_id: ids, or None.
    chat_template: Jinja source, or None.
    vocab_size: number of ids, with added tokens.
    largest_id: of all tokens.
    special_ids: ids that `skip_special_tokens` leaves out.
    spelling: how tokens spell bytes.
    strips_space: whether a text's first space belongs to the tokenizer.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        unk_token_id: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.pad_token_id = pad_token_id
        self.unk_token_id = unk_token_id
        self.chat_template = chat_template
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.largest_id: int = max([self.vocab_size - 1, *added])
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.spelling, self.strips_space = spelling_of(backend)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_source(cls, source: TokenizerSource, override: str | None = None) -> Tokenizer:
        """The tokenizer of a checkpoint, or of `override`: a directory with tokenizer.json, or that file.

        Raises CheckpointError when there is none or it cannot be read.
        """
        if override is not None:
            path = Path(override).expanduser()
            directory = path.parent if path.name == "tokenizer.json" else path
            return _from_directory(directory, source.chat_template)
        if source.directory is not None:
            return _from_directory(Path(source.directory), source.chat_template)
        vocabulary = source.vocabulary
        if vocabulary is None:
            raise CheckpointError("The checkpoint has no tokenizer. Name one with --tokenizer.")
        return cls(
            build_tokenizer(vocabulary),
            bos_token_id=vocabulary.bos_token_id,
            eos_token_id=vocabulary.eos_token_id,
            pad_token_id=vocabulary.pad_token_id,
            unk_token_id=vocabulary.unk_token_id,
            chat_template=source.chat_template,
        )

    @classmethod
    def restore(cls, snapshot: TokenizerSnapshot) -> Tokenizer:
        """The tokenizer that another process took a snapshot of."""
        return cls(
            tokenizers.Tokenizer.from_str(snapshot.document),
            bos_token_id=snapshot.bos_token_id,
            eos_token_id=snapshot.eos_token_id,
            pad_token_id=snapshot.pad_token_id,
            unk_token_id=snapshot.unk_token_id,
            chat_template=snapshot.chat_template,
        )

    @cached_property
    def snapshot(self) -> TokenizerSnapshot:
        """The message from which another process makes the same tokenizer. The first time takes 30 ms for 50,000 tokens."""
        return TokenizerSnapshot(
            document=self.backend.to_str(),
            bos_token_id=self.bos_token_id,
            eos_token_id=self.eos_token_id,
            pad_token_id=self.pad_token_id,
            unk_token_id=self.unk_token_id,
            chat_template=self.chat_template,
        )

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest spelling in the vocabulary; no token stands for much more text. Slow the first time."""
        spellings = self.backend.get_vocab(with_added_tokens=True)
        return max(map(len, spellings), default=1)

    @property
    def special_tokens(self) -> dict[str, str]:
        """The named special tokens as chat templates know them: `bos_token`, `eos_token`, ..."""
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
        """Token ids of a text; special tokens written out in it count as such. Raises RequestError for lone surrogates."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """As `encode`, for several texts. Other Python threads go on meanwhile, unlike with the library's `encode`."""
        try:
            batch = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(
                f"The text is not valid Unicode ({error}); send whole characters.", param="prompt"
            ) from error
        return [encoding.ids for encoding in batch]

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of token ids; bytes that form no character become U+FFFD, unknown ids nothing.

        spaces_between_special_tokens: accepted for compatibility; these tokenizers never add spaces of their own.
        """
        if self.spelling == "other":
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        text = self.join_bytes(ids, skip_special_tokens).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_space else text

    def join_bytes(self, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
        """The bytes of all tokens in a row, without the special ones if asked."""
        hidden = self.special_ids if skip_special_tokens else ()
        return b"".join([self.token_bytes(index) for index in ids if index not in hidden])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, possibly part of a character. Empty for an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            # The library takes unsigned 32-bit numbers alone, and raises for others.
            in_range = 0 <= token_id < 1 << 32
            token = self.backend.id_to_token(token_id) if in_range else None
            known = b"" if token is None else piece_bytes(token, self.spelling)
            self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        """The text of one token; U+FFFD where it is part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")


def _from_directory(directory: Path, chat_template: str | None) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{directory}: there is no tokenizer.json. Name a directory that has one with --tokenizer."
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path}: cannot be read as a tokenizer ({error}).") from error
    backend.no_truncation()
    backend.no_padding()
    settings = _read_settings(directory)
    if chat_template is None:
        chat_template = _template(directory, settings)
    return Tokenizer(
        backend,
        bos_token_id=_token_id(backend, settings.get("bos_token")),
        eos_token_id=_token_id(backend, settings.get("eos_token")),
        pad_token_id=_token_id(backend, settings.get("pad_token")),
        unk_token_id=_token_id(backend, settings.get("unk_token")),
        chat_template=chat_template,
    )


def _read_settings(directory: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = directory / name
        if path.is_file():
            try:
                found = json.loads(path.read_bytes())
            except ValueError as error:
                raise CheckpointError(f"{path}: is not valid JSON ({error}).") from error
            if isinstance(found, dict):
                settings.update(found)
    return settings


def _token_id(backend: tokenizers.Tokenizer, value: Any) -> int | None:
    content = value.get("content") if isinstance(value, dict) else value
    return backend.token_to_id(content) if isinstance(content, str) else None


def _template(directory: Path, settings: dict[str, Any]) -> str | None:
    """`chat_template.jinja`, or else the configuration's template; of several, the one named `default`."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {row.get("name"): row.get("template") for row in found if isinstance(row, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
