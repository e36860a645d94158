"""The engine's front door: `from core import LLM, SamplingParams`.

Owns: the names that users import, each loaded on first use, so that importing the package imports neither torch nor the
engine. Called by: users.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from core.aliases import install

if TYPE_CHECKING:
    from core.api.outputs import CompletionOutput, RequestOutput
    from core.api.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from core.api.pooling_params import PoolingParams
    from core.api.sampling_params import SamplingParams
    from core.api.structured_outputs import StructuredOutputsParams
    from core.library.async_llm import AsyncLLM, AsyncLLMEngine
    from core.library.beam_search import BeamSearchParams
    from core.library.engine_args import AsyncEngineArgs, EngineArgs
    from core.library.inputs import PromptType, TextPrompt, TokensPrompt
    from core.library.llm_engine import LLMEngine
    from core.library.shared_tensors import SharedTensors
    from core.llm import LLM
    from core.version import __version__

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


NOT_SERVED = {
    "ModelRegistry": "models are plugins, see docs/plugins",
    "initialize_ray_cluster": "nothing is started with Ray",
}
"""Names that vLLM's package has, and why no script can use them here."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    homes = {
        "LLM": "core.llm",
        "LLMEngine": "core.library.llm_engine",
        "AsyncLLM": "core.library.async_llm",
        "AsyncLLMEngine": "core.library.async_llm",
        "EngineArgs": "core.library.engine_args",
        "AsyncEngineArgs": "core.library.engine_args",
        "SamplingParams": "core.api.sampling_params",
        "BeamSearchParams": "core.library.beam_search",
        "PoolingParams": "core.api.pooling_params",
        "ClassificationOutput": "core.api.pooling_outputs",
        "EmbeddingOutput": "core.api.pooling_outputs",
        "PoolingOutput": "core.api.pooling_outputs",
        "ScoringOutput": "core.api.pooling_outputs",
        "ClassificationRequestOutput": "core.api.pooling_outputs",
        "EmbeddingRequestOutput": "core.api.pooling_outputs",
        "PoolingRequestOutput": "core.api.pooling_outputs",
        "ScoringRequestOutput": "core.api.pooling_outputs",
        "SharedTensors": "core.library.shared_tensors",
        "StructuredOutputsParams": "core.api.structured_outputs",
        "TextPrompt": "core.library.inputs",
        "TokensPrompt": "core.library.inputs",
        "PromptType": "core.library.inputs",
        "RequestOutput": "core.api.outputs",
        "CompletionOutput": "core.api.outputs",
        "__version__": "core.version",
    }
    if name in NOT_SERVED:
        raise ImportError(f"There is no core.{name}: {NOT_SERVED[name]}.")
    if name not in homes:
        raise AttributeError(f"module 'core' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(homes[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


install()
