"""The engine's front door: `from core import LLM, SamplingParams`.

Owns: the names that users import, each loaded on first use, so that importing the package imports nothing else of it. Never
does: import a distribution other than its own, except the one that offers a name, once that is asked for.
Called by: users.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLMEngine",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "SharedTensors",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_OWN: Final = {
    "SamplingParams": "core.api.sampling_params",
    "PoolingParams": "core.api.pooling_params",
    "ClassificationOutput": "core.api.pooling_outputs",
    "EmbeddingOutput": "core.api.pooling_outputs",
    "PoolingOutput": "core.api.pooling_outputs",
    "ScoringOutput": "core.api.pooling_outputs",
    "ClassificationRequestOutput": "core.api.pooling_outputs",
    "EmbeddingRequestOutput": "core.api.pooling_outputs",
    "PoolingRequestOutput": "core.api.pooling_outputs",
    "ScoringRequestOutput": "core.api.pooling_outputs",
    "StructuredOutputsParams": "core.api.structured_outputs",
    "RequestOutput": "core.api.outputs",
    "CompletionOutput": "core.api.outputs",
    "__version__": "core.version",
}
"""Module of each name that this distribution has itself."""

_FRONTEND: Final = "core-engine"
_COMPAT: Final = "core-engine"
_OFFERED: Final = {
    "LLM": _FRONTEND,
    "LLMEngine": _COMPAT,
    "AsyncLLM": _COMPAT,
    "AsyncLLMEngine": _COMPAT,
    "EngineArgs": _COMPAT,
    "AsyncEngineArgs": _COMPAT,
    "BeamSearchParams": _COMPAT,
    "SharedTensors": _COMPAT,
    "TextPrompt": _COMPAT,
    "TokensPrompt": _COMPAT,
    "PromptType": _COMPAT,
}
"""Distribution of each name that is an entry point of group `core.names`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used. Raises ImportError when its distribution is not installed."""
    if name in _OWN:
        value = getattr(import_module(_OWN[name]), name)
    elif name in _OFFERED:
        value = _offered(name)
    else:
        raise AttributeError(f"module 'core' has no attribute {name!r}; it offers {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _offered(name: str) -> Any:
    from core.plugin.entry_points import named, target_of

    distribution = _OFFERED[name]
    target = target_of("core.names", name, distribution)
    if not target:
        raise ImportError(f"core.{name} comes with {distribution}: pip install {distribution}.", name=__name__)
    return named(target)
