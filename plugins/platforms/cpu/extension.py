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
    """The compiled extension, or why it is not there (with the end of the compiler's message when there is one)."""
    try:
        from plugins.platforms.cpu import _native
    except ImportError as error:
        log = ERROR_FILE.read_text(encoding="utf-8", errors="replace").strip() if ERROR_FILE.exists() else str(error)
        return Reason("native_extension", "the compiled C++ extension", log[-2000:], "`core build-kernels` compiles it")
    return _native
