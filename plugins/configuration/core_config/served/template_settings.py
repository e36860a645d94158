"""Settings of a server's chat template, from its arguments.

Owns: `TemplateSettings` and their problems. Never does: read a template or render. Called by: `server_config` (builds them),
the preparation of requests (reads them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from core.api.errors import nearest
from core_config.arguments.sources import Merged

ContentFormat = Literal["auto", "string", "openai"]

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of `reasoning_effort` in requests."""

RESERVED = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "documents", "messages", "self", "tools"}
)
"""Variables of templates that a request's own fields set."""

MAX_BYTES = 65_536
"""Most bytes that the variables may have as JSON: they are a part of every request's rendering."""


class TemplateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server tells its chat template.

    variables: for requests that do not set them.
    efforts: what the template gets as `reasoning_effort`, by what the request names.
    content_format: form in which the template gets the contents of messages.
    shows_uncallable: whether the tools of a request that must not call any are shown to the model.
    """

    variables: dict[str, Any] = {}
    efforts: dict[str, str] = {}
    content_format: ContentFormat = "auto"
    shows_uncallable: bool = False


def template_settings(merged: Merged, problems: list[str]) -> TemplateSettings:
    """Build the settings. Sentences about problems are added to `problems`."""
    variables = merged.value("default_chat_template_kwargs") or {}
    efforts = merged.value("reasoning_effort_map") or {}
    problems += _of_variables(variables) + _of_efforts(efforts)
    return TemplateSettings(
        variables=variables,
        efforts=efforts,
        content_format=merged.value("chat_template_content_format"),
        shows_uncallable=not merged.value("exclude_tools_when_tool_choice_none"),
    )


def _of_variables(variables: Mapping[str, Any]) -> list[str]:
    flag = "--default-chat-template-kwargs"
    found = [
        f"{flag}: '{name}' may not be set; a request's own fields decide. Leave it out."
        for name in variables
        if name in RESERVED
    ]
    size = len(msgspec.json.encode(variables))
    if size > MAX_BYTES:
        found.append(f"{flag} has {size} bytes of JSON; expected at most {MAX_BYTES}.")
    return found


def _of_efforts(efforts: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for given, told in efforts.items():
        if given not in EFFORTS:
            found.append(
                f"--reasoning-effort-map: '{given}' is no effort; expected {', '.join(EFFORTS)}.{nearest(given, EFFORTS)}"
            )
        if not isinstance(told, str) or not told:
            found.append(
                f"--reasoning-effort-map: '{given}' is given {told!r}; expected a text, such as the name of an effort."
            )
    return found
