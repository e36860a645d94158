"""Configuration: from arguments to a resolved configuration, with its explanation and the memory plan. Torch-free.

Owns: every rule that derives a value, and the reason given for it. Never does: read weights, open a device.
Called by: the command line, `LLM`, the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name that scripts written for vLLM import from its `config` package. Raises ImportError with the reason
    for any other name.
    """
    if name == "VllmConfig":
        return import_module("core_runtime.specs.vllm_config").VllmConfig
    script_objects = import_module("core_config.script_objects")  # `from` would call this function for the module first
    if name in script_objects.NOT_SERVED:
        raise ImportError(f"There is no core_config.{name}: {script_objects.NOT_SERVED[name]}.")
    found = getattr(script_objects, name, None)
    if not isinstance(found, type) or not issubclass(found, script_objects.Keys):
        raise AttributeError(f"module 'core_config' has no attribute {name!r}")
    return found
