"""The sharing of cached prefixes: each API key shares with itself alone, and all of them share the operator's public
prompts.

Owns: `Tenants`: the names of tenants, the public prompts as tokens. Never does: check keys (`Authentication` does) or
cache. Called by: `core_apis.app` (builds it), `run_prompts`.

Only the operator makes a prompt public. If clients could, one client could publish what another one wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from core.api.errors import RequestError, UserError
from core_apis.prepare.apart import ApartPreparation
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparedChat

MOST_BYTES = 4 << 20
"""Maximum size in bytes of a file with a public prompt."""

ENDS = ("a", "1")
"""Two continuations of a public prompt: the common tokens at the start of both belong to the prompt itself."""


class Tenants:
    """The tenants of one server.

    names: of the API keys' tenants, in the order of the keys. public: prompts that all of them share, as token ids.
    """

    def __init__(self, names: Sequence[str] = (), public: Sequence[list[int]] = ()) -> None:
        self._names = names
        self._public = public

    @classmethod
    def of(
        cls, keys: Sequence[str], prompts: Iterable[str] = (), preparation: Preparation | ApartPreparation | None = None
    ) -> Tenants:
        """Return the tenants of these API keys. prompts: paths of files. preparation: prepares their texts, if there
        are any.

        Raises UserError for a prompt that cannot be used.
        """
        names = [tenant_name(key) for key in keys]
        public: list[list[int]] = []
        if names and preparation is not None:
            for path in prompts:
                public += _prompt_tokens(path, preparation)
        return cls(names, public)

    def name(self, key: int | None) -> str:
        """Return the tenant of the API key with that number; empty for None."""
        return "" if key is None else self._names[key]

    def num_public_tokens(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens at the start of a prompt all tenants share."""
        return max((_num_common(public, token_ids) for public in self._public), default=0)


def tenant_name(key: str) -> str:
    """Return the name of an API key's tenant, the same after a restart. It does not reveal the key."""
    data = b"prefix cache tenant\0" + key.encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()


def _prompt_tokens(path: str, preparation: Preparation | ApartPreparation) -> list[list[int]]:
    """Return the token sequences at the start of prompts that use the public prompt in a file."""
    text = _read(path)
    is_body = Path(path).suffix == ".json"
    fields = _fields(path, text) if is_body else {"messages": [{"role": "system", "content": text}]}
    tokenizer = preparation.tokenizer
    if tokenizer.refusal:
        raise UserError(f"--public-prompt {path}: {tokenizer.refusal}")
    found: list[list[int]] = []
    if not is_body:
        plain = [tokenizer.encode(text + end) for end in ENDS]
        found.append(_common(plain))
    if preparation.settings.chat_template is not None:
        chats = [_chat_tokens(path, fields, end, preparation) for end in ENDS]
        found.append(_common(chats))
    return found


def _read(path: str) -> str:
    try:
        data = Path(path).expanduser().read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--public-prompt {path}: it cannot be read ({error}); expected a file of UTF-8 text."
        ) from None
    if not text.strip() or len(data) > MOST_BYTES:
        raise UserError(f"--public-prompt {path}: it has {len(data)} bytes; expected a text of at most {MOST_BYTES}.")
    return text


def _fields(path: str, text: str) -> dict[str, Any]:
    """Return the fields of a chat's body that stand before the first question."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise UserError(f"--public-prompt {path}: this is no JSON ({error}); call other texts .txt.") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("messages"), list):
        raise UserError(
            f"--public-prompt {path}: expected an object with 'messages', and what else of a chat's body the prompt is made "
            "of, such as 'tools'."
        )
    return fields


def _chat_tokens(path: str, fields: dict[str, Any], end: str, preparation: Preparation | ApartPreparation) -> list[int]:
    """Return the prompt of a chat that continues with `end`, as tokens."""
    question = {"role": "user", "content": end}
    body = {**fields, "messages": [*fields["messages"], question]}
    data = json.dumps(body).encode()
    try:
        prepared: PreparedChat = preparation.run("chat", data)
    except RequestError as error:
        raise UserError(f"--public-prompt {path}: no chat begins so: {error}") from None
    return prepared.prompts[0].token_ids


def _common(sequences: Sequence[list[int]]) -> list[int]:
    first, second = sequences
    return first[: _num_common(first, second)]


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common start of both sequences."""
    if list(second[: len(first)]) == first:
        return len(first)
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
