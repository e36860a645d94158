"""The receipt of an answer, as clients get it.

Owns: `Receipt` with its parts, and its canonical bytes. Never does: compute an answer, or hash weights. Called by: the issuer,
`core verify`, the recorder of traffic.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final, Literal

import msgspec

from core.api.errors import UserError

FORMAT: Final = 1
LARGEST: Final = 16 << 20
"""Maximum size in bytes of a receipt that is read."""
_SEAL: Final = b"core receipt seal 1\0"


class WeightsFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The weights of an answer.

    digest: SHA-256 over the weight files, or over samples of them.
    kind:   whether the files were hashed whole, only sampled, or cannot be seen from here.
    update: version of the weights that replaced those of the files; empty: none did.
    """

    digest: str
    kind: Literal["whole", "sampled", "unknown"]
    update: str = ""


class ChoiceFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer: its number of tokens, why it ended, the marks of its chain, and the chain's end."""

    index: int
    num_tokens: int
    finish_reason: str | None
    marks: str
    end: str


class Receipt(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What one prompt's answers were computed with, and the keyed digests of their tokens.

    format:          version of this form.
    version:         version of the engine.
    numerics:        name of everything besides weights that bits depend on.
    instruction_set: of the processor, or the platform's name for the device.
    tokenizer, template: digests of the tokenizer's files, and of the chat template.
    plugins:         distributions of the plugins in use, with version and digest of their code.
    adapter:         digest of the adapter; empty: the base model.
    sampling:        the values that decide the tokens, with the seed; long lists and grammars by digest.
    inputs:          digest of pictures and embeddings in the prompt; empty: there are none.
    num_prompt_tokens, prompt: length of the prompt, and the marks of its chain.
    created:         seconds since the epoch.
    seal:            HMAC of everything above under the opening.
    signature:       of everything above under the server's key, after the name of its method; empty: it has none.
    """

    format: int = FORMAT
    version: str
    numerics: str
    instruction_set: str
    weights: WeightsFact
    tokenizer: str
    template: str
    plugins: list[str]
    adapter: str = ""
    sampling: dict[str, Any]
    inputs: str = ""
    num_prompt_tokens: int
    prompt: str
    choices: list[ChoiceFact]
    created: int
    seal: str = ""
    signature: str = ""

    def plain(self, *, sealed: bool) -> bytes:
        """Return its canonical bytes without the signature. sealed: whether the seal is included."""
        bare = msgspec.structs.replace(self, signature="", seal=self.seal if sealed else "")
        return msgspec.json.encode(bare, order="sorted")


class IssuedReceipt(msgspec.Struct, forbid_unknown_fields=True):
    """A receipt with its opening, the 64 hex digits that its chains are keyed with. Only the client gets the opening."""

    receipt: Receipt
    opening: str


def seal_of(receipt: Receipt, opening: bytes) -> str:
    """Return the seal that a receipt must have under this opening."""
    return hmac.new(opening, _SEAL + receipt.plain(sealed=False), hashlib.sha256).hexdigest()


def digest_of(value: Any) -> str:
    """Return a short digest of a plain value."""
    return "sha256:" + hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]


def read_receipts(data: bytes, name: str) -> list[tuple[Receipt, str]]:
    """Return the receipts in a file with their openings (empty where the file has none), in the order of the prompts.

    data: a receipt, one with its opening, a list of those, or a whole answer with the field `receipt`. Raises UserError with
    a sentence for anything else.
    """
    if len(data) > LARGEST:
        raise UserError(f"{name}: {len(data)} bytes; a receipt has at most {LARGEST}.")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{name}: no JSON: {error}.") from None
    if isinstance(found, dict) and "seal" not in found and isinstance(found.get("receipt"), list | dict):
        inner = found["receipt"]
        found = inner if "opening" not in found else found
        if isinstance(inner, dict) and "receipt" in inner:
            found = inner
    rows = found if isinstance(found, list) else [found]
    if not rows:
        raise UserError(f"{name}: there is no receipt in it.")
    return [_one(row, name) for row in rows]


def _one(row: Any, name: str) -> tuple[Receipt, str]:
    inner, opening = row, ""
    if isinstance(row, dict) and "receipt" in row:
        inner, opening = row["receipt"], row.get("opening", "")
    if not isinstance(inner, dict) or "seal" not in inner:
        raise UserError(f"{name}: there is no receipt in it; expected the field `receipt` of an answer.")
    if inner.get("format") != FORMAT:
        raise UserError(f"{name}: a receipt of format {inner.get('format')!r:.40}; this version reads format {FORMAT}.")
    try:
        receipt = msgspec.convert(inner, Receipt)
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: no valid receipt: {error}.") from None
    if not isinstance(opening, str):
        raise UserError(f"{name}: the opening is no text of 64 hex digits.")
    return receipt, opening


def opening_bytes(text: str) -> bytes:
    """Return the 32 bytes of an opening. Raises UserError."""
    try:
        opening = bytes.fromhex(text.strip())
    except ValueError:
        opening = b""
    if len(opening) != 32:
        raise UserError("The opening key is no text of 64 hex digits; give the `opening` that came with the receipt.")
    return opening
