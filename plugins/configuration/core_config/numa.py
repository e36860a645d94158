"""The NUMA node of an engine, from its arguments and this machine's nodes.

Owns: that choice. Never does: bind anything (an observer in the engine process does). Called by: the rules, and what collects
the settings of observers.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.api.errors import UserError
from core_config.stages.settings import Settings
from core_platforms.cpu.nodes import numa_nodes, numbers_of
from core_platforms.cpu.processors import usable_processors


def numa_binding(settings: Settings) -> dict[str, list[int]] | None:
    """Return `nodes` for memory and `processors` for threads; None where nothing is bound. Raises UserError."""
    if not settings["numa_bind"]:
        return None
    known = numa_nodes()
    if not known:
        raise UserError("--numa-bind: this system lists no NUMA nodes in /sys/devices/system/node; leave it out.")
    usable = usable_processors()
    nodes = _given_nodes(settings["numa_bind_nodes"], known)
    processors = _given_processors(settings["numa_bind_cpus"], usable)
    if not nodes and not processors:
        if settings["device"] not in (None, "cpu"):
            raise UserError(f"--numa-bind: the node of {settings['device']} is not known; give --numa-bind-nodes.")
        nodes = [max(known, key=lambda node: (len(set(known[node]) & set(usable)), -node))]
    if not nodes:
        nodes = [node for node, own in known.items() if set(own) & set(processors)]
    if not processors:
        processors = [processor for processor in usable if any(processor in known[node] for node in nodes)]
    if not processors:
        raise UserError(f"--numa-bind-nodes {nodes[0]}: this process may use no processor of it, only {usable}.")
    return {"nodes": nodes, "processors": processors}


def _given_nodes(given: list[int] | None, known: Mapping[int, tuple[int, ...]]) -> list[int]:
    if not given:
        return []
    said = " ".join(map(str, given))
    if len(given) > 1:
        raise UserError(f"--numa-bind-nodes {said}: the engine is bound as one rank; give one node.")
    if given[0] not in known:
        there = ", ".join(map(str, known))
        raise UserError(f"--numa-bind-nodes {said}: this machine has no such node, only {there}; choose one of these.")
    return list(given)


def _given_processors(given: list[str] | None, usable: list[int]) -> list[int]:
    if not given:
        return []
    said = " ".join(given)
    if len(given) > 1:
        raise UserError(f"--numa-bind-cpus {said}: the engine is bound as one rank; give one list, such as 0-3,8.")
    try:
        processors = sorted(set(numbers_of(given[0])))
    except ValueError as error:
        raise UserError(
            f"--numa-bind-cpus {said}: '{error}' is not understood; expected processors such as 0-3,8."
        ) from None
    missing = sorted(set(processors) - set(usable))
    if missing or not processors:
        named = missing[0] if missing else said
        raise UserError(f"--numa-bind-cpus {said}: this process may not use processor {named}, only {usable}.")
    return processors
