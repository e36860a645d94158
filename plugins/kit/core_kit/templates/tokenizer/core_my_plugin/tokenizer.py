"""The tokenizer: ids 0 to 255 are bytes, then come the words, then the token that ends an answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.api.errors import CheckpointError
from core_tokens.contract import Ends

BYTES = 256


class WordsAndBytes:
    """Implements `core_tokens.contract.TextTokenizer`. Raises CheckpointError for a file that is no list of words."""

    strips_space = False
    chat_template = None
    ends = Ends()

    def __init__(self, directory: str | None, arguments: Any) -> None:
        words = _words(Path(directory) / "words.json") if directory is not None else []
        self._ids = {word: BYTES + index for index, word in enumerate(words)}
        self._words = [word.encode() for word in words]
        longest_first = sorted(words, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if words else None
        end = BYTES + len(words)
        self.vocab_size = end + 1
        self.control = {arguments.end: end}
        self.named = {"eos_token": end}
        self.identity = hashlib.sha256(json.dumps(["words and bytes 1", words, arguments.end]).encode()).hexdigest()

    def encode(self, text: str) -> Sequence[int]:
        """Return the longest word at each place, and bytes where there is none."""
        if self._pattern is None:
            return list(text.encode())
        ids: list[int] = []
        end = 0
        for match in self._pattern.finditer(text):
            ids += text[end : match.start()].encode()
            ids.append(self._ids[match.group()])
            end = match.end()
        return [*ids, *text[end:].encode()]

    def token_bytes(self, token_id: int) -> bytes:
        """Return a byte, a word, or nothing for the token that ends an answer."""
        if token_id < BYTES:
            return bytes([token_id])
        return self._words[token_id - BYTES] if token_id - BYTES < len(self._words) else b""


def _words(path: Path) -> list[str]:
    if not path.is_file():
        return []
    words = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise CheckpointError(f"{path}: expected a list of words that are not empty.")
    return list(dict.fromkeys(words))
