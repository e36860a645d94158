"""The MCP servers whose tools this server runs: the forms of `--tool-server`, and what is wrong with a value.

Owns: the forms and the sentences. Never does: dial. Called by: `core_config.served.server`, `core_apis.tools.making`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from core_config.arguments.sources import Merged

FLAG: Final = "--tool-server"
MOST: Final = 16
LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


def address_of(given: str) -> tuple[str | None, str]:
    """Return the label and the URL of a value: [LABEL=]URL, or HOST:PORT, which means http://HOST:PORT/sse as in vLLM."""
    label, found, rest = given.partition("=")
    if not found or "/" in label or ":" in label:
        label, rest = "", given
    url = rest if "://" in rest else f"http://{rest}/sse"
    return label or None, url


def tool_server_problems(merged: Merged) -> Iterator[str]:
    """Yield why the tool servers that the user names cannot be used."""
    given: list[str] = merged.value("tool_server")
    if len(given) > MOST:
        yield f"{FLAG}: {len(given)} servers, expected at most {MOST}."
    seen: set[str] = set()
    for each in given:
        if each == "demo":
            yield f"{FLAG} demo: this server has no tools of its own; name MCP servers, such as http://127.0.0.1:9000/mcp."
            continue
        label, url = address_of(each)
        if label is not None and (not LABEL.fullmatch(label) or label in seen):
            why = "named twice" if label in seen else "no label of 1 to 32 letters, digits, '_' and '-'"
            yield f"{FLAG} {each}: '{label}' is {why}."
        seen.add(label or "")
        if not _is_url(url):
            yield f"{FLAG} {each}: expected [LABEL=]http://HOST:PORT/PATH, https://HOST/PATH, or HOST:PORT."


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    bare = not (parts.fragment or parts.username or parts.password)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and bare and port != 0
