"""The sampling parameters that a checkpoint recommends.

Owns: which keys of a `generation_config.json` count. Never does: read files. Called by: `LLM` and the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.api.config import ModelConfig
from core.api.errors import ConfigError, RequestError
from core.api.sampling_params import SamplingParams
from core_frontend.api.explanation import Source

RECOMMENDED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def recommended_values(model: ModelConfig) -> dict[str, Any]:
    """Return the checkpoint's defaults under our names; `max_new_tokens` becomes `max_tokens`."""
    values = {name: model.generation[name] for name in RECOMMENDED if model.generation.get(name) is not None}
    if model.generation.get("max_new_tokens") is not None:
        values["max_tokens"] = model.generation["max_new_tokens"]
    return values


def sampling_sources(params: SamplingParams, given: Iterable[str], model: ModelConfig) -> dict[str, Source]:
    """Return the sources of values that are not defaults: the request, for names in `given`, else the model's
    recommendation.
    """
    sources: dict[str, Source] = {}
    for name, value in recommended_values(model).items():
        key = "max_new_tokens" if name == "max_tokens" else name
        if getattr(params, name) == value:
            sources[name] = "server" if key in model.overridden else "generation_config"
    for name in given:
        sources[name] = "request"
    return sources


def changed_names(params: SamplingParams) -> list[str]:
    """Return the names of parameters that are not at their defaults."""
    unchanged = SamplingParams()
    names = params.__struct_fields__
    return [name for name in names if getattr(params, name) != getattr(unchanged, name)]


def default_sampling_params(model: ModelConfig) -> SamplingParams:
    """Return the parameters of a request that sets none.

    Raises ConfigError if the checkpoint recommends something invalid.
    """
    try:
        return SamplingParams(**recommended_values(model))
    except RequestError as error:
        raise ConfigError(
            [f"The generation defaults of {model.model!r} are invalid: {error} Set --generation-config to ignore them."]
        ) from error
