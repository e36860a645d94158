"""Which settings the nodes of an engine must have in common, and which belong to each of them.

Owns: both lists. Never does: compare weights or arithmetic (ranks do, see `agreement`). Called by: the first node.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from core.api.config import EngineConfig
from core_distributed.arguments import RanksArguments

COMMON: Final = ("device", "compilation", "acceptance", "sleeps", "processor_timeout_s", "weights")
OF_MODEL: Final = frozenset({
    "model", "served_names", "tokenizer", "allow_control_tokens", "generation", "overridden", "eos_token_ids",
})  # fmt: skip
OF_CACHE: Final = frozenset({"num_blocks", "memory_bytes"})
OF_CHOICES: Final = frozenset({"arguments", "table"})
"""Fields that may differ: places of files, names for clients, and sizes, which are those of node 0 or the least of all."""
OWN_ARGUMENTS: Final = ("platform.cpu",)
"""Plugins whose arguments belong to a host."""


def shape_of(arguments: RanksArguments) -> str:
    """Return what an engine is divided into, for people and for the comparison."""
    divided = f"{arguments.ranks} x {arguments.stages} on {arguments.nodes} nodes"
    return (
        f"{divided}, experts {arguments.placement} +{arguments.redundant_experts}, moves {arguments.balance_interval}, "
        f"positions {arguments.context}"
    )


def difference(own: EngineConfig, other: EngineConfig) -> str:
    """Return the first setting in which two nodes differ, as a sentence; empty if there is none."""
    pairs: list[tuple[str, Any, Any]] = [(name, getattr(own, name), getattr(other, name)) for name in COMMON]
    # The limits of adapters are those of node 0, but each node needs the plugins that read their files.
    pairs.append(("enable_lora", own.adapters is not None, other.adapters is not None))
    for part, free in (("model", OF_MODEL), ("cache", OF_CACHE), ("plugins", OF_CHOICES)):
        mine, its = getattr(own, part), getattr(other, part)
        pairs += [
            (name, getattr(mine, name), getattr(its, name)) for name in mine.__struct_fields__ if name not in free
        ]
    arguments = own.plugins.arguments, other.plugins.arguments
    names = dict.fromkeys([*arguments[0], *arguments[1]])
    pairs += [
        (name, arguments[0].get(name), arguments[1].get(name))
        for name in names
        if name not in OWN_ARGUMENTS and not name.startswith("executor.")
    ]
    for name, mine, its in pairs:
        if _plain(mine) != _plain(its):
            return f"Its {name} is {_short(its)}, that of node 0 is {_short(mine)}."
    return ""


def config_for(own: EngineConfig, node: EngineConfig) -> EngineConfig:
    """Return the configuration of ranks on another node. own: of node 0. node: of that node's own arguments."""
    arguments = {**own.plugins.arguments}
    arguments |= {name: node.plugins.arguments[name] for name in OWN_ARGUMENTS if name in node.plugins.arguments}
    return msgspec.structs.replace(
        own,
        model=msgspec.structs.replace(own.model, model=node.model.model, tokenizer=node.model.tokenizer),
        cache=msgspec.structs.replace(own.cache, memory_bytes=node.cache.memory_bytes),
        plugins=msgspec.structs.replace(own.plugins, arguments=arguments, table=node.plugins.table),
        safetensors_load_strategy=node.safetensors_load_strategy,
        log_config=node.log_config,
    )


def _plain(value: Any) -> Any:
    """Return a value in the form that a message has it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
