"""The stage that chooses KV connectors: those that arguments of the KV cache need, then those that the user names.

Owns: the connector that each argument needs. Never does: load one. Called by: `core_config.stages.choices`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.args.schema import flag_of
from core.plugin.kinds import normalize
from core.plugin.registry import PluginRegistry
from core_config.selection import select_kv_connectors
from core_config.stages.attempt import Attempt
from core_config.stages.settings import Settings, underscored

NAMED = "kv_transfer_config.kv_connector"
EXPLAIN = ("explain", "--explain-answers")
BY_ARGUMENTS = ("keep", "tiers", "events", "residency", "explain")
"""Connectors that arguments of their own choose."""


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
    named = list(named_by_user(settings))
    if settings["kv_transfer_config"] and settings.mapping("kv_transfer_config").get("kv_connector") is None:
        attempt.problems.append(f"{flag_of('kv_transfer_config')}: names no connector; expected {flag_of(NAMED)} NAME.")
    problems = list(_mistakes(named))
    attempt.problems += problems
    if problems:
        return
    asked += named
    choice = attempt.answer_of(lambda: select_kv_connectors(attempt.plugins, asked))
    if choice is not None and asked:
        attempt.chosen.stages["kv_connector"] = choice


def named_by_user(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (name, argument as the user writes it) of the connectors that the user names, in order."""
    for name in settings["kv_connectors"]:
        yield name, f"{flag_of('kv_connectors')} {name}"
    name = settings.mapping("kv_transfer_config").get("kv_connector")
    if name is not None:
        yield name, f"{flag_of(NAMED)} {name}"


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


def _has(registry: PluginRegistry, name: str) -> bool:
    return any(row.name == name and not registry.blocked(row) for row in registry.rows("kv_connector"))


def _mistakes(named: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each name that may not be written, or is written twice."""
    seen: dict[str, str] = {}
    for name, said in named:
        known = normalize(name)
        if known in BY_ARGUMENTS:
            yield (
                f"{said}: the engine chooses this connector by arguments of its own, such as --kv-offloading-size; "
                "leave it out."
            )
        elif known in seen:
            yield f"{said}: this connector is already named by {seen[known]}; leave one out."
        seen[known] = said
