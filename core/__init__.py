"""The engine's front door: `from core import LLM, SamplingParams`.

Owns: the names that users import, each loaded on first use, so that importing the package imports neither torch nor the
engine. Called by: users.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.api.outputs import CompletionOutput, RequestOutput
    from core.api.pooling_outputs import EmbeddingRequestOutput, PoolingRequestOutput, ScoringRequestOutput
    from core.api.pooling_params import PoolingParams
    from core.api.sampling_params import SamplingParams
    from core.api.structured_outputs import StructuredOutputsParams
    from core.llm import LLM
    from core.version import __version__

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    homes = {
        "LLM": "core.llm",
        "SamplingParams": "core.api.sampling_params",
        "PoolingParams": "core.api.pooling_params",
        "EmbeddingRequestOutput": "core.api.pooling_outputs",
        "PoolingRequestOutput": "core.api.pooling_outputs",
        "ScoringRequestOutput": "core.api.pooling_outputs",
        "StructuredOutputsParams": "core.api.structured_outputs",
        "RequestOutput": "core.api.outputs",
        "CompletionOutput": "core.api.outputs",
        "__version__": "core.version",
    }
    if name not in homes:
        raise AttributeError(f"module 'core' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(homes[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
