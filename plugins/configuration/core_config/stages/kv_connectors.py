"""The stage that chooses KV connectors: those that arguments of the KV cache need, then those that the user names.

Owns: the connector that each argument needs. Never does: load one. Called by: `core_config.stages.choices`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from core.args.schema import flag_of
from core.plugin.kinds import normalize
from core.plugin.registry import PluginRegistry
from core_config.selection import select_kv_connectors
from core_config.stages.attempt import Attempt
from core_config.stages.kv_transfer import NamedConnector, named_connectors
from core_config.stages.settings import Settings, underscored

EXPLAIN = ("explain", "--explain-answers")
BY_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "keep": "keep_kv",
        "tiers": "kv_offloading_size",
        "host": "kv_offloading_size",
        "disk": "kv_offloading_disk_path",
        "events": "kv_events_config",
        "residency": "kv_cache_metrics",
        "explain": "explain_answers",
    }
)
"""Arguments that choose connectors which may not be named; `host` and `disk` are `tiers`."""

MADE_UP = "bench"
HARMLESS = (MADE_UP, "events", "residency", "explain")
"""Connectors that keep no blocks for anybody else; `keep` would hand them to another engine of this server."""


def choose_kv_connectors(attempt: Attempt) -> None:
    """Choose the connectors; each failure is a problem. Explanations of cache misses that the user did not request are
    left out where they are not installed.
    """
    settings = attempt.settings
    asked = list(built_in(settings))
    is_wish = settings.user_set("explain_answers")
    if EXPLAIN in asked and not is_wish and not _has(attempt.plugins, "explain"):
        settings.derive("explain_answers", "off", "no KV connector explains cache misses")
        asked.remove(EXPLAIN)
    named = named_connectors(settings)
    problems = list(_mistakes(named.connectors))
    attempt.problems += problems
    if problems:
        return
    asked += [(instance, connector.said) for instance, connector in named.instances()]
    attempt.problems += beside_made_up(asked)
    choice = attempt.answer_of(lambda: select_kv_connectors(attempt.plugins, asked))
    if choice is not None and asked:
        attempt.chosen.stages["kv_connector"] = choice


def built_in(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (name, argument) of the engine's own connectors that arguments need, in order."""
    if settings["keep_kv"] and settings["engine_restarts"]:
        yield "keep", "--keep-kv"
    for argument in ("kv_offloading_size", "kv_offloading_disk_path"):
        if settings[argument]:
            yield "tiers", flag_of(argument)
            break
    if publishes_events(settings):
        yield "events", "--kv-events-config"
    if settings["kv_cache_metrics"]:
        yield "residency", "--kv-cache-metrics"
    if settings["explain_answers"] != "off":
        yield EXPLAIN


def publishes_events(settings: Settings) -> bool:
    """Whether `--kv-events-config` switches events on."""
    keys = underscored(settings["kv_events_config"] or {})
    return bool(keys.get("enable_kv_cache_events")) and keys.get("publisher", "zmq") != "null"


def beside_made_up(asked: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each connector that would keep, or hand on, what the connector `bench` has made up."""
    said = next((said for name, said in asked if name == MADE_UP), None)
    if said is not None:
        for name, other in asked:
            if name not in HARMLESS:
                yield f"{said}: its blocks are made up, and would be kept or handed on as true ones; leave out {other}."


def _has(registry: PluginRegistry, name: str) -> bool:
    return any(row.name == name and not registry.blocked(row) for row in registry.rows("kv_connector"))


def _mistakes(named: Sequence[NamedConnector]) -> Iterator[str]:
    """Yield a sentence for each name that may not be written, or is written twice."""
    seen: dict[str, str] = {}
    for connector in named:
        known, said = normalize(connector.plugin), connector.said
        if known in BY_ARGUMENTS:
            flag = flag_of(BY_ARGUMENTS[known])
            yield f"{said}: the engine chooses this connector by arguments of its own, such as {flag}; leave it out."
        elif known in seen and not connector.is_part:
            yield f"{said}: this connector is already named by {seen[known]}; leave one out."
        seen[known] = said
