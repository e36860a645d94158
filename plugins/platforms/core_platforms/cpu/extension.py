"""The compiled extension of the `cpu` platform, or the reason why it is missing. Torch-free.

Owns: the only import of `_native`, and the names of instruction sets. Never does: compile (see `build.py`).
Called by: the kernels, the attention backend `cpu_paged`, and their manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from core.api.errors import UserError
from core.api.reason import Reason

InstructionSet = Literal[
    "generic", "avx2", "avx512", "avx512_vnni", "avx512_vnni_bf16", "amx", "neon", "neon_dot", "neon_bf16"
]
ERROR_FILE = Path(__file__).parent / "native_build_error.txt"


def kernels_or_reason() -> ModuleType | Reason:
    """Return the compiled extension, or the reason why it is missing."""
    try:
        from core_platforms.cpu import _native
    except ImportError as error:
        actual = str(error)
        hint = "`core build-kernels` compiles it"
        if ERROR_FILE.exists():
            actual = "a failed build"
            hint += "; `core plugins show cpu` shows what the compiler said"
        return Reason("native_extension", "the compiled C++ extension", actual, hint)
    return _native


def check_isa(native: ModuleType | Reason, isa: str) -> None:
    """Raise UserError when this machine cannot run the kernels of an instruction set."""
    if isinstance(native, Reason):
        raise UserError(f"isa '{isa}': not compiled: {native}.")
    runnable = native.isas()
    if isa in runnable:
        return
    text = f"isa '{isa}': these run here: {', '.join(runnable)}"
    if isa not in native.compiled_isas():  # an installation from source compiles only the best set of its own machine
        text += "; `CORE_NATIVE=all core build-kernels` compiles every set that the compiler knows"
    raise UserError(f"{text}.")


def numerics(name: str, platform: Mapping[str, Any]) -> str | None:
    """Return `NAME:ISA` of the active instruction set, which the platform's own arguments may override; None without
    the extension. Raises UserError, as `check_isa` does.
    """
    native = kernels_or_reason()
    isa = platform.get("isa")
    if isa is not None:
        check_isa(native, isa)
    if isinstance(native, Reason):
        return None
    return f"{name}:{isa or native.isa()}"
