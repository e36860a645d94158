"""The public names of the engine: `from core import LLM, SamplingParams`.

Owns: the names that users import. Each is loaded on first use, so that importing the package imports nothing else of it. Never
does: import another distribution, except the one that offers a name, when that name is first used.
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
    "StructuredOutputsParams": "core.api.structured_outputs",
    "__version__": "core.version",
}
"""Module of each public name that this distribution itself defines."""

_FRONTEND: Final = "core-engine-frontend"
"""The distribution that offers all other names, as entry points of the group `core.names`."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used. Raises ImportError when its distribution is not installed."""
    if name in _OWN:
        value = getattr(import_module(_OWN[name]), name)
    elif name in __all__:
        value = _offered(name)
    else:
        raise AttributeError(f"module 'core' has no attribute {name!r}; it offers {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _offered(name: str) -> Any:
    from core.entry_points import named, target_of

    target = target_of("core.names", name, _FRONTEND)
    if not target:
        raise ImportError(f"core.{name} comes with {_FRONTEND}: pip install {_FRONTEND}.", name=__name__)
    return named(target)
