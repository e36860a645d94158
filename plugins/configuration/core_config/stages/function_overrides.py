"""`hf_overrides` as a function, as scripts written for vLLM pass it: the keys of the configuration that it changes.

Owns: the call, and the comparison. Never does: apply the keys. Called by: `core_config.stages.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from core.api.errors import CheckpointError

OWN = frozenset({"transformers_version", "_name_or_path", "model_type"})
"""Keys that transformers sets itself, and the one that says what the rest means."""


def overrides_of(function: Callable[[Any], Any], hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function with transformers' object of a configuration; return the values that differ in what it returns.

    Raises CheckpointError for a function that fails, or returns no configuration or values that are not plain.
    """
    import transformers  # takes a second, and few starts have a function

    named = getattr(function, "__name__", type(function).__name__)
    rest = {key: value for key, value in hf_config.items() if key != "model_type"}
    try:
        config = transformers.AutoConfig.for_model(str(hf_config.get("model_type")), **rest)
    except ValueError:
        config = transformers.PretrainedConfig(**hf_config)  # a model that transformers does not have
    before = config.to_dict()
    try:
        changed = function(config)
    except Exception as error:
        raise CheckpointError(f"hf_overrides: {named} failed ({type(error).__name__}: {error}).") from error
    if not isinstance(changed, transformers.PretrainedConfig):
        raise CheckpointError(f"hf_overrides: {named} returned a {type(changed).__name__}; expected the configuration.")
    if changed.model_type != config.model_type:
        raise CheckpointError(f"hf_overrides: {named} returned a model of another type, '{changed.model_type}'.")
    found = {key: value for key, value in changed.to_dict().items() if key not in OWN and before.get(key) != value}
    try:
        plain: dict[str, Any] = msgspec.to_builtins(found)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"hf_overrides: {named} set a value that is no plain one ({error}).") from error
    return plain
