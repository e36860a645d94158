"""The configuration of adapters, from the arguments.

Owns: reading `--lora-modules`; `adapters_config`. Never does: open an adapter. Called by: `core_config.engine`, and the rules
about adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from core.api.adapters import AdaptersConfig, AdapterSource
from core_config.stages.settings import Settings

DEFAULT_NAME = "qlora"
"""Name of the adapter of `--qlora-adapter-name-or-path`."""


class Module(msgspec.Struct, forbid_unknown_fields=True):
    """One adapter of `--lora-modules` as JSON. base_model_name: no effect: there is one base model."""

    name: str
    path: str
    base_model_name: str | None = None


def adapters_config(settings: Settings) -> AdaptersConfig | None:
    """Return the configuration, whose arguments the rules have checked; None without adapters."""
    if not settings["enable_lora"]:
        return None
    modules, _ = lora_modules(settings["lora_modules"])
    default = settings["qlora_adapter_name_or_path"]
    if default is not None:
        modules.append(AdapterSource(DEFAULT_NAME, absolute(default)))
    modules += media_modules(settings["default_mm_loras"])
    return AdaptersConfig(
        max_loras=settings["max_loras"],
        max_cpu_loras=settings["max_cpu_loras"] or settings["max_loras"],
        max_lora_rank=settings["max_lora_rank"],
        lora_dtype=settings["lora_dtype"],
        target_modules=tuple(settings["lora_target_modules"] or ()),
        modules=tuple(modules),
        default="" if default is None else DEFAULT_NAME,
    )


def lora_modules(given: list[Any] | None) -> tuple[list[AdapterSource], list[str]]:
    """Return the adapters of `--lora-modules`, and a sentence for each one that is not understood."""
    found: dict[str, AdapterSource] = {}
    problems: list[str] = []
    for word in given or ():
        try:
            modules = _modules(word)
        except (msgspec.MsgspecError, ValueError) as error:
            problems.append(f'--lora-modules {word}: {error}; expected NAME=PATH, or {{"name": ..., "path": ...}}.')
            continue
        for module in modules:
            if module.name in found:
                problems.append(f"--lora-modules: two adapters have the name '{module.name}'; give each its own.")
            found[module.name] = AdapterSource(module.name, absolute(module.path))
    return list(found.values()), problems


def media_modules(given: Mapping[str, Any]) -> list[AdapterSource]:
    """Return the adapters of `--default-mm-loras`, each under the name of its modality."""
    return [AdapterSource(name, absolute(str(path))) for name, path in given.items()]


def names_by_modality(settings: Settings) -> dict[str, str]:
    """Return the name of the adapter of each modality that has one; the same for modalities that share a path."""
    modules = media_modules(settings["default_mm_loras"]) if settings["enable_lora"] else []
    first: dict[str, str] = {}
    for module in modules:
        first.setdefault(module.path, module.name)
    return {module.name: first[module.path] for module in modules}


def _modules(word: Any) -> list[Module]:
    """Return the adapters of one word. Raises MsgspecError, ValueError."""
    if not isinstance(word, str):
        modules = [msgspec.convert(word, Module)]
    elif word.lstrip().startswith("{"):
        modules = [msgspec.json.decode(word, type=Module)]
    elif word.lstrip().startswith("["):
        modules = msgspec.json.decode(word, type=list[Module])
    else:
        name, _, path = word.partition("=")
        modules = [Module(name.strip(), path.strip())]
    if not all(module.name and module.path for module in modules):
        raise ValueError("a name or a path is missing")
    return modules


def absolute(path: str) -> str:
    """Return a path that does not depend on the working directory of a process."""
    return str(Path(path).expanduser().absolute())
