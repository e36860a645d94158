"""The projector of a GGUF model's pictures: a file that the user names, or the one beside the model.

Owns: which file it is. Never does: open one. Called by: the stage that resolves a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from core.api.errors import CheckpointError
from core_config.locating.gguf_choice import is_projector

AUTO: Final = "auto"
NONE: Final = "none"
MAX_SHOWN: Final = 8


def projector_file(wanted: str, model: str) -> str:
    """Return the path that `--mmproj` names; empty without a projector. Raises CheckpointError when it does not exist.

    model: path of the model's file or directory.
    """
    if wanted == NONE:
        return ""
    if wanted == AUTO:
        found = projectors_beside(model)
        return found[0] if len(found) == 1 else ""
    path = Path(wanted).expanduser().absolute()
    if not path.is_file():
        raise CheckpointError(f"--mmproj {wanted}: there is no such file; expected a file, auto or none.")
    return str(path)


def projectors_beside(model: str) -> list[str]:
    """Return the projector files in a model's directory, by name."""
    path = Path(model)
    folder = path if path.is_dir() else path.parent
    try:
        names = sorted(entry.name for entry in folder.iterdir() if is_projector(entry.name) and entry.is_file())
    except OSError:
        return []  # the loader says what is wrong with the model
    return [str(folder.absolute() / name) for name in names]


def why_none(wanted: str, model: str) -> str:
    """Return a warning for projectors of which `auto` chooses none; empty where there is nothing to choose."""
    found = projectors_beside(model) if wanted == AUTO else []
    if len(found) < 2:
        return ""
    listed = ", ".join(Path(each).name for each in found[:MAX_SHOWN])
    return (
        f"--mmproj: {len(found)} projectors lie beside the model ({listed}), so the model takes text; name one of them."
    )
