"""Rows of media that a request gives in place of a picture or sound: what its tower would compute.

Owns: where requests have them, and the refusal where they are not served. Never does: decode a tensor
(`core_media.reading.embeds` does, with numpy). Called by: the readers of parts and of scripts' media.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from core.api.errors import RequestError
from core_media.config import AUDIO, IMAGE, NOUNS, MediaConfig

KINDS: Final[Mapping[str, str]] = MappingProxyType({"image_embeds": IMAGE, "audio_embeds": AUDIO})
"""Types of parts, which are also names of the tensor in them, with their modality."""
GRID: Final = "image_grid_thw"
FORM: Final = "expected base64 of a tensor in a file of torch.save or safetensors"


class Given(msgspec.Struct, frozen=True):
    """Rows as a request has them.

    tensor: base64 of a file, or an array of floats [rows, size] of a script. grid: of patches; None: the model needs none.
    """

    tensor: Any
    grid: Any = None


def check_served(config: MediaConfig, modality: str) -> None:
    """Raise RequestError if the server takes no rows of a modality, without a place."""
    if config.row_size and modality in config.around_rows:
        return
    noun = NOUNS[modality]
    if not config.row_size:
        raise RequestError(
            f"rows of a {noun} are not taken; start the server with --enable-mm-embeds, or send a {noun}"
        )
    raise RequestError(
        f"rows of a {noun} are not taken for models of type '{config.model_type}', whose processor writes text between "
        f"them; send a {noun}"
    )


def given_part(given: object, kind: str) -> Given:
    """Return the rows that a part has under its type's name. Raises RequestError, without a place."""
    grid = None
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - {kind, GRID})
        if unknown:
            raise RequestError(
                f"{kind} has the key {unknown[0]!r:.80}; expected '{kind}', and '{GRID}' where a model needs it"
            )
        grid = given.get(GRID)
        given = given.get(kind)
    if not isinstance(given, str):
        raise RequestError(f"{kind} is missing; {FORM}")
    return Given(given, grid)
