"""Servers that compute prompts for this one: what is wrong with `--prefill-servers`.

Owns: the sentences. Never does: dial. Called by: `core_config.served.server`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from core_config.arguments.sources import Merged

FLAG: Final = "--prefill-servers"
MOST: Final = 64
"""Four of them are asked for a prompt."""
PRODUCER: Final = "kv_producer"


def prefill_problems(merged: Merged) -> Iterator[str]:
    """Yield why prompts cannot be sent to the servers that the user names."""
    urls: list[str] = merged.value("prefill_servers")
    if not urls:
        return
    if len(urls) > MOST:
        yield f"{FLAG}: {len(urls)} servers, expected at most {MOST}."
    for url in urls:
        if not _is_address(url):
            yield f"{FLAG} {url}: expected http://HOST:PORT or https://HOST:PORT, without a path."
    if not merged.value("quotes"):
        yield f"{FLAG}: where a prompt is faster is known from quotes; add --quotes, here and there."
    if not merged.value("kv_peers"):
        yield f"{FLAG}: pages are fetched from addresses in --kv-peers alone, which names none; add those of these servers."
    transfer = merged.value("kv_transfer_config")
    role = transfer.get("kv_role") if isinstance(transfer, dict) else None
    if role == PRODUCER:
        yield f"{FLAG}: --kv-transfer-config.kv_role {role} takes no pages; use kv_consumer or kv_both."


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and bare and port != 0
