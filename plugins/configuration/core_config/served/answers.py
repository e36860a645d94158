"""Settings for the parsing of answers, from the arguments: names, files and plugins of response formats.

Owns: `AnswerSettings` and their problems. Never does: look at a checkpoint, whose format the server detects.
Called by: resolve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import PluginError, UserError
from core.plugin.registry import PluginRegistry
from core_config.arguments.sources import Merged
from core_formats.answers.settings import AnswerSettings

FORMATS = "response_format"
FILES = {"tool_parser_plugin": "--tool-parser-plugin", "reasoning_parser_plugin": "--reasoning-parser-plugin"}


def answer_settings(merged: Merged, registry: PluginRegistry, problems: list[str]) -> AnswerSettings:
    """Build the settings. Sentences about problems are added to `problems`."""
    settings = AnswerSettings(
        enable_auto_tool_choice=merged.value("enable_auto_tool_choice"),
        tool_call_parser=merged.value("tool_call_parser") or "auto",
        reasoning_parser=merged.value("reasoning_parser") or "auto",
        reasoning_markers=_markers(merged, problems),
        form_in_reasoning=bool((merged.value("structured_outputs_config") or {}).get("enable_in_reasoning")),
    )
    files = {flag: merged.value(name) for name, flag in FILES.items() if merged.value(name)}
    names = {settings.tool_call_parser, settings.reasoning_parser}
    if not files and names <= {"auto", "none"} and not registry.rows(FORMATS):
        return settings  # most starts need no row
    rows = _rows(settings, files, registry, problems)
    return msgspec.structs.replace(settings, rows=tuple(rows))


def _markers(merged: Merged, problems: list[str]) -> tuple[str, str] | None:
    """Return the texts around the reasoning, None unless both are given."""
    given = merged.value("reasoning_config") or {}
    start = given.get("reasoning_start_str")
    end = given.get("reasoning_end_str")
    if start and end:
        return start, end
    if given:
        problems.append("--reasoning-config: needs reasoning_start_str and reasoning_end_str, both with a text.")
    return None


def _rows(
    settings: AnswerSettings, files: dict[str, str], registry: PluginRegistry, problems: list[str]
) -> list[dict[str, Any]]:
    """Return the rows in addition to the engine's own, as plain values: from files, from named plugins, and all others
    for detection.
    """
    from core_formats.plugin_rows import installed_rows, row_named, rows_of_file
    from core_formats.response_format import ResponseFormat
    from core_formats.selection import named, with_name

    found: list[ResponseFormat] = []
    for flag, file in files.items():
        try:
            found += rows_of_file(Path(file).expanduser())
        except UserError as error:
            problems.append(f"{flag}: {error}")
    from_files = tuple(found)
    detects = False
    for kind, _, name in named(settings):
        detects = detects or name == "auto"
        if name in ("auto", "none"):
            continue
        try:
            row = row_named(name, kind, registry, from_files)
        except (UserError, PluginError) as error:
            problems.append(str(error))
        else:
            found.append(with_name(row, kind, name))
    if detects:
        found += installed_rows(registry)
    return [msgspec.to_builtins(row) for row in dict.fromkeys(found)]
