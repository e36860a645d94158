"""The cached tokens that a server reports for logged requests.

Owns: sending them one after the other, for one token each. Never does: judge. Called by: `core kv audit --url`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from core.api.errors import UNREADABLE, UserError
from core_commands.client.endpoint import Endpoint, EndpointError, whole
from core_commands.kv.journal_log import Recorded
from core_commands.kv.log_file import Logged

UNTOLD = "the server reports no cached tokens; start it with --enable-prompt-tokens-details"


async def ask_cached(endpoint: Endpoint, log: Sequence[Logged | Recorded]) -> list[int | None]:
    """Return the cached tokens of each request; None for one that the server refuses. Raises UserError."""
    found: list[int | None] = []
    try:
        for logged in log:
            found.append(await _cached(endpoint, logged))
    except EndpointError as error:
        raise UserError(str(error)) from None
    finally:
        await endpoint.close()
    return found


async def _cached(endpoint: Endpoint, logged: Logged | Recorded) -> int | None:
    left_out = ("stream", "stream_options", "max_completion_tokens")
    kept = {name: value for name, value in logged.body.items() if name not in left_out}
    body = msgspec.json.encode({**kept, "max_tokens": 1})
    async with endpoint.ask("POST", logged.path, body) as answer:
        data = await whole(answer)
        if answer.status != 200:
            return None
    try:
        usage: Any = msgspec.json.decode(data)["usage"]
        if "cache_read_input_tokens" in usage:
            return int(usage["cache_read_input_tokens"])
        return int((usage.get("prompt_tokens_details") or {})["cached_tokens"])
    except (*UNREADABLE, KeyError, TypeError, AttributeError):
        raise UserError(f"--url {endpoint.name}: {UNTOLD}.") from None
