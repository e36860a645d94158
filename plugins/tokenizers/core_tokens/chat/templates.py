"""The chat templates in a checkpoint's directory.

Owns: their look-up. Never does: render (`core_tokens.chat.chat_template` does). Called by: `core_tokens.directory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from core.api.errors import CheckpointError
from core_tokens.checkpoint_files import inside, read_json, read_text

FURTHER = "additional_chat_templates"
TOOL_TEMPLATE = "tool_use"
"""Name of the additional template for conversations with tools."""


class Templates(NamedTuple):
    """The Jinja sources, and the checkpoint's description of answers.

    default: None when there is none.
    named: all others by name (`tool_use`, `rag`, ...).
    response: transformers' `response_template`, which describes how answers are parsed; None when there is none.
    """

    default: str | None
    named: dict[str, str]
    response: Any = None


def read_templates(directory: Path, settings: Mapping[str, Any]) -> Templates:
    """Read `chat_template.jinja`, else `chat_template.json`, else the tokenizer configuration's; others by their names.

    settings: of `read_tokenizer_config`. Raises CheckpointError when a file cannot be read.
    """
    found = _configured(settings.get("chat_template"))
    found.update(_configured(_json_template(directory / "chat_template.json")))
    for path in sorted((directory / FURTHER).glob("*.jinja")):
        found[path.stem] = read_text(inside(directory, f"{FURTHER}/{path.name}"))
    single = directory / "chat_template.jinja"
    if single.is_file():
        found["default"] = read_text(single)
    default = found.pop("default", None)
    return Templates(default, found, settings.get("response_template"))


def _configured(value: Any) -> dict[str, str]:
    """Return templates by name: a text is the default; several are rows with names, or a mapping."""
    if isinstance(value, str):
        return {"default": value}
    found: dict[str, str] = {}
    rows = value.items() if isinstance(value, dict) else _rows(value)
    for name, template in rows:
        if isinstance(name, str) and isinstance(template, str):
            found[name] = template
    return found


def _rows(value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, list):
        return []
    return [(row.get("name"), row.get("template")) for row in value if isinstance(row, dict)]


def _json_template(path: Path) -> Any:
    if not path.is_file():
        return None
    found = read_json(path)
    if isinstance(found, dict) and isinstance(found.get("chat_template"), str | list | dict):
        return found["chat_template"]
    raise CheckpointError(f"{path}: has no chat_template; expected an object with that key.")
