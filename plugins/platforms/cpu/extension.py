"""The compiled extension of the `cpu` platform, or the reason why it is missing. Torch-free.

Owns: the one import of `_native`. Never does: compile (see `build.py`).
Called by: the kernels, the attention backend `cpu_paged`, and their manifests.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from core.api.reason import Reason

ERROR_FILE = Path(__file__).parent / "native_build_error.txt"


def kernels_or_reason() -> ModuleType | Reason:
    """The compiled extension, or why it is not there."""
    try:
        from plugins.platforms.cpu import _native
    except ImportError as error:
        failed = ERROR_FILE.exists()
        actual = "a failed build" if failed else str(error)
        hint = "`core build-kernels` compiles it"
        hint += "; `core plugins show cpu` shows what the compiler said" if failed else ""
        return Reason("native_extension", "the compiled C++ extension", actual, hint)
    return _native
