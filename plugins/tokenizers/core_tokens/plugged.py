"""A tokenizer that is a plugin, in the shape of the library's tokenizer, which the rest of this package calls.

Owns: `Plug`, the checks of what a plugin answers, and the split of a text at control tokens. Never does: know a format.
Called by: `core_tokens.tokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from tokenizers import AddedToken

from core.api.config import PluginChoices, ResolvedPlugin
from core.api.errors import PluginError, RequestError
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core_tokens.contract import Ends, TextTokenizer

KIND = "tokenizer"
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
MAX_VOCABULARY = 1 << 24
"""Maximum number of ids; the bytes of all of them are kept."""
MAX_TOKEN_BYTES = 1 << 16
"""Maximum bytes of one token."""


class Plug(msgspec.Struct, frozen=True):
    """What a process needs to load a tokenizer plugin.

    row:           the chosen plugin.
    arguments:     its own arguments as plain values.
    directory:     see `TextTokenizer`.
    small_letters: texts are lower-cased first.
    """

    row: ResolvedPlugin
    arguments: dict[str, Any] = {}
    directory: str | None = None
    small_letters: bool = False


def plug_of(plugins: PluginChoices) -> Plug | None:
    """Return the chosen tokenizer plugin; None where `--tokenizer-mode` is one of the engine's own."""
    for row in plugins.table:
        if row.kind == KIND:
            return Plug(row, plugins.arguments.get(f"{KIND}.{row.name}", {}))
    return None


class Piece(NamedTuple):
    """Tokens of a part of a text. text: index of the text. start: its first character. is_control: it is one control token."""

    text: int
    start: int
    shown: str
    ids: list[int]
    is_control: bool = False


class PluggedEncoding:
    """The attributes of the library's `Encoding` that this package reads.

    special_tokens_mask: 1 for a token that `ends` added.
    """

    def __init__(self, backend: PluggedBackend, pieces: Sequence[Piece], with_ends: bool) -> None:
        self._backend = backend
        self._pieces = pieces
        ends = backend.ends if with_ends else Ends()
        rows = [(index, 0, 1) for index in ends.before]
        second = False
        for piece in pieces:
            if piece.text and not second:
                second = True
                rows += [(index, 0, 1) for index in ends.between or ()]
            rows += [(index, ends.second_type if second else 0, 0) for index in piece.ids]
        rows += [(index, ends.second_type if second else 0, 1) for index in ends.after]
        self._before, self._after = len(ends.before), len(ends.after)
        self.ids = [row[0] for row in rows]
        self.type_ids = [row[1] for row in rows]
        self.special_tokens_mask = [row[2] for row in rows]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Return the span of each token of a single text; (0, 0) for tokens around it. Raises PluginError."""
        found = [(0, 0)] * self._before
        for piece in self._pieces:
            spans = self._backend.spans(piece)
            found += [(piece.start + first, piece.start + end) for first, end in spans]
        return found + [(0, 0)] * self._after


class PluggedBackend:
    """The methods of `tokenizers.Tokenizer` that this package calls, over a plugin's object.

    encode_special_tokens: spellings of control tokens are text.
    normalizer:            applied to texts first, or None.
    """

    decoder = None

    def __init__(self, plug: Plug) -> None:
        context = LoadContext(arguments=plug.arguments, options={"directory": plug.directory})
        self.plug = plug
        self.own: TextTokenizer = PluginTable([plug.row]).load(KIND, plug.row.name, context)
        self.encode_special_tokens = False
        self.normalizer: Any = None
        self.ends = self._checked_ends()
        self.strips_space = bool(self.own.strips_space)
        self._check()
        self.control: dict[int, str] = {index: text for text, index in self.own.control.items()}
        self.bytes_of: list[bytes] = [self._checked_bytes(index) for index in range(self.own.vocab_size)]
        by_length = sorted(self.own.control, key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, by_length))) if by_length else None

    def blame(self, what: str) -> PluginError:
        """Return the error that names the plugin. what: the end of its sentence."""
        return PluginError(f"tokenizer plugin '{self.plug.row.name}': {what}; see core_tokens.contract.", self.plug.row)

    def _check(self) -> None:
        """Check everything that is no method. Raises PluginError."""
        own = self.own
        size = own.vocab_size
        if not isinstance(size, int) or not 0 < size <= MAX_VOCABULARY:
            raise self.blame(f"vocab_size is {size!r}, expected a number from 1 to {MAX_VOCABULARY}")
        if not isinstance(own.identity, str) or not own.identity:
            raise self.blame(f"identity is {own.identity!r}, expected a text that is not empty")
        if own.chat_template is not None and not isinstance(own.chat_template, str):
            raise self.blame(f"chat_template is {own.chat_template!r}, expected Jinja source or None")
        unknown = sorted(set(own.named) - set(NAMED))
        if unknown:
            raise self.blame(f"named has {unknown}, expected some of {', '.join(NAMED)}")
        self._check_control()
        used = [*own.named.values(), *own.control.values(), *self.ends.before, *self.ends.after]
        wrong = [index for index in (*used, *(self.ends.between or ())) if not self._is_id(index)]
        if wrong:
            raise self.blame(f"named, control or ends have {wrong[:3]}, expected ids below vocab_size {size}")

    def _checked_ends(self) -> Ends:
        """Return the control tokens around texts. Raises PluginError where they are no lists of ids."""
        given: Any = self.own.ends
        ends = Ends(*given) if isinstance(given, (list, tuple)) and len(given) <= len(Ends._fields) else None
        lists: list[Any] = (
            [] if ends is None else [ends.before, ends.after, () if ends.between is None else ends.between]
        )
        if (
            ends is None
            or not all(isinstance(ids, (list, tuple)) for ids in lists)
            or type(ends.second_type) is not int
        ):
            raise self.blame(f"ends is {given!r:.80}, expected lists of ids and a type, as in `Ends`")
        return ends

    def _check_control(self) -> None:
        """Check the spellings of control tokens. Raises PluginError."""
        own = self.own
        if "" in own.control or not all(isinstance(text, str) for text in own.control):
            raise self.blame("control has a spelling that is no text or empty")
        if len(set(own.control.values())) != len(own.control):
            raise self.blame("control gives two spellings one id")
        if own.named.get("unk_token", -1) in own.control.values():
            raise self.blame("unk_token is among the control tokens, which no text gives")

    def _is_id(self, index: Any) -> bool:
        return isinstance(index, int) and not isinstance(index, bool) and 0 <= index < self.own.vocab_size

    def _checked_bytes(self, index: int) -> bytes:
        spelled = self.control.get(index)
        if spelled is not None:
            return spelled.encode()
        try:
            found: Any = self.own.token_bytes(index)
        except Exception as error:
            raise self.blame(f"token_bytes({index}) raised {type(error).__name__} ({error})") from error
        if not isinstance(found, bytes) or len(found) > MAX_TOKEN_BYTES:
            raise self.blame(f"token_bytes({index}) is {found!r:.60}, expected at most {MAX_TOKEN_BYTES} bytes")
        return bytes(found)

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes of a token; nothing for an unknown id."""
        return self.bytes_of[index] if 0 <= index < len(self.bytes_of) else b""

    def plain_ids(self, text: str) -> list[int]:
        """Return the plugin's ids of a text without control tokens. Raises RequestError, and PluginError for its mistakes."""
        if not text:
            return []
        text.encode()  # lone surrogates: the caller reports them, and no plugin needs to
        try:
            ids = list(self.own.encode(text))
        except RequestError:
            raise
        except Exception as error:
            raise self.blame(f"encode raised {type(error).__name__} ({error})") from error
        for index in ids:
            if not self._is_id(index) or index in self.control:
                kind = "a control token" if self._is_id(index) else "no id"
                raise self.blame(f"encode returned {index!r}, which is {kind}")
        return ids

    def pieces(self, text: str, number: int = 0) -> list[Piece]:
        """Return the tokens of a text, whose control tokens are recognized unless `encode_special_tokens`."""
        if self.normalizer is not None:
            text = self.normalizer.normalize_str(text)
        found: list[Piece] = []
        end = 0
        matches = () if self._split is None or self.encode_special_tokens else self._split.finditer(text)
        for match in matches:
            found.append(self._plain(text, end, match.start(), number))
            spelled = match.group()
            found.append(Piece(number, match.start(), spelled, [self.own.control[spelled]], True))
            end = match.end()
        found.append(self._plain(text, end, len(text), number))
        return found

    def _plain(self, text: str, start: int, end: int, number: int) -> Piece:
        shown = text[start:end]
        return Piece(number, start, shown, self.plain_ids(shown))

    def spans(self, piece: Piece) -> list[tuple[int, int]]:
        """Return the characters of each token of a piece, from its first one. Raises PluginError."""
        if piece.is_control:
            return [(0, len(piece.shown))]
        own = getattr(self.own, "spans", None)
        if own is not None and piece.ids:
            found = [(int(start), int(end)) for start, end in own(piece.shown)]
            if len(found) != len(piece.ids) or any(not 0 <= a <= b <= len(piece.shown) for a, b in found):
                raise self.blame(f"spans gave {len(found)} spans for {len(piece.ids)} tokens, or some outside the text")
            return found
        return self._spans_of_bytes(piece)

    def _spans_of_bytes(self, piece: Piece) -> list[tuple[int, int]]:
        """Return the spans that follow from the tokens' bytes."""
        joined = b"".join(map(self.token_bytes, piece.ids))
        skipped = len(joined) - len(piece.shown.encode())
        if joined != b" " * skipped + piece.shown.encode() or skipped > self.strips_space:
            raise self.blame("the bytes of its tokens are not the text's, and it has no method spans")
        at = [index for index, letter in enumerate(piece.shown) for _ in letter.encode()]
        found = []
        first = -skipped
        for index in piece.ids:
            end = first + len(self.token_bytes(index))
            start = max(first, 0)
            found.append(
                (at[start], at[end - 1] + 1) if end > start else (at[start] if start < len(at) else len(at),) * 2
            )
            first = end
        return found

    # The library's methods.

    def encode_batch_fast(self, texts: Iterable[Any], add_special_tokens: bool = True) -> list[PluggedEncoding]:
        """Return the tokens of texts, or of pairs of texts."""
        return [self._encoded(text, add_special_tokens) for text in texts]

    encode_batch = encode_batch_fast

    def encode(self, text: str, add_special_tokens: bool = True) -> PluggedEncoding:
        """Return the tokens of a text."""
        return self._encoded(text, add_special_tokens)

    def _encoded(self, text: Any, with_ends: bool) -> PluggedEncoding:
        if isinstance(text, str):
            return PluggedEncoding(self, self.pieces(text), with_ends)
        first, second = text
        return self.pair([*self.pieces(first), *self.pieces(second, 1)], with_ends)

    def pair(self, pieces: Sequence[Piece], with_ends: bool = True) -> PluggedEncoding:
        """Return the tokens of two texts as one sequence. Raises RequestError where the tokenizer has no form of pairs."""
        if self.ends.between is None:
            raise RequestError(
                f"The tokenizer '{self.plug.row.name}' has no form of pairs of texts; send single texts."
            )
        return PluggedEncoding(self, pieces, with_ends)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of ids."""
        return self.own.vocab_size

    def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Return the control tokens by id."""
        return {index: AddedToken(text, special=True, normalized=False) for index, text in self.control.items()}

    @cached_property
    def _vocabulary(self) -> dict[str, int]:
        """Return ids by spelling; of tokens with equal spellings, the first one's."""
        found: dict[str, int] = {}
        for index in range(self.own.vocab_size):
            found.setdefault(self._spelled(index), index)
        return found | dict(self.own.control)

    def _spelled(self, index: int) -> str:
        return self.token_bytes(index).decode(errors="backslashreplace")

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Return ids by spelling; bytes that are part of a character are spelled as `\\xe2`."""
        return dict(self._vocabulary)

    def id_to_token(self, index: int) -> str | None:
        """Return the spelling of a token; None for an unknown id."""
        return self._spelled(index) if self._is_id(index) else None

    def token_to_id(self, text: str) -> int | None:
        """Return the id of a spelling; None for an unknown one."""
        return self._vocabulary.get(text)

    def to_str(self) -> str:
        """Return a text that differs where tokens do."""
        return f"{self.plug.row.name} {self.plug.small_letters} {self.own.identity}"
