"""The GGUF loader's own arguments. Owns: the declaration alone. Called by: its manifest and the loader."""

from __future__ import annotations

from typing import Annotated

import msgspec


class GGUFArguments(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The arguments in `--model-loader-extra-config`.

    mmproj: path of the file with the tower and the projector of pictures, which `--mmproj` chooses; empty: the model takes
    text.
    """

    mmproj: Annotated[
        str,
        msgspec.Meta(description="Path of the file with the tower and the projector of pictures; empty: only text."),
    ] = ""
