"""vLLM's names for scripts: `from core_compat import LLM, SamplingParams` instead of `from vllm import ...`.

Owns: the switch that makes vLLM's module paths importable: this import installs the project's only import hook. Never
does: import the engine before a name of it is used. Called by: scripts written for vLLM.
"""

from __future__ import annotations

from typing import Any

import core
from core_compat.aliases import NAMES_NOT_SERVED, install

__all__ = core.__all__


def __getattr__(name: str) -> Any:
    """Return a public name of `core`. Raises ImportError with the reason for a name of vLLM's that is not supported."""
    if name in NAMES_NOT_SERVED:
        raise ImportError(f"There is no {__name__}.{name}: {NAMES_NOT_SERVED[name]}.")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(core, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


install()
