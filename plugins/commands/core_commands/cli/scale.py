"""`core scale URL N`: have a running server use more or fewer engines.

Owns: the command's arguments, output and exit code. Never does: start or end an engine (the server does). Called by: the frame.
"""

import asyncio
import os
from typing import Annotated, Any

import msgspec

from core.api.errors import UserError
from core.args.arg import Arg
from core.args.show import show
from core.commands.printable import safe
from core.commands.words import take_help
from core_commands.cli.own_options import option_section, refuse_rest, take_options

USAGE = "core scale URL N [ARGUMENTS]"
ABOUT = (
    "Have the server at URL use N engines from now on (--data-parallel-size, up to --elastic-ep-max-dp-size), while its "
    "requests go on. Returns when the new ones serve, or those that leave have ended."
)
PATH = "/scale_elastic_ep"


class ScaleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of scale."""

    drain_timeout: Annotated[
        float, Arg("Seconds in which requests of engines that leave may end there; the rest goes on in others.", ge=0)
    ] = 120.0
    api_key: Annotated[str | None, Arg("Key of the server's operator. Unset: CORE_API_KEY.", secret=True)] = None


def scale(words: list[str]) -> int:
    """Run `core scale`; returns the exit code: 1 where the server refuses."""
    if take_help(words) is not None:
        show(USAGE, ABOUT, [option_section("Options", ScaleOptions)])
        return 0
    options = take_options(ScaleOptions, words)
    url = words.pop(0) if words and not words[0].startswith("-") else None
    size = words.pop(0) if words else None
    refuse_rest("scale", words, ScaleOptions)
    if url is None or size is None:
        raise UserError(f"core scale: {'URL' if url is None else 'N'} is missing; expected: {USAGE}.")
    if not (size.isascii() and size.isdigit() and 0 < len(size) < 6):
        raise UserError(f"core scale: N is {size}; expected a number of engines, from 1 on.")
    status, sentence = asyncio.run(_order(url, int(size), options))
    print(safe(sentence), flush=True)
    return int(status != 200)


async def _order(url: str, size: int, options: ScaleOptions) -> tuple[int, str]:
    """Return the status of the server's answer, and what to print. Raises UserError, EndpointError."""
    from core_commands.client.endpoint import whole
    from core_commands.client.http_endpoint import HttpEndpoint
    from core_commands.client.refusal import refusal

    server = HttpEndpoint(url, options.api_key or os.environ.get("CORE_API_KEY"))
    body = msgspec.json.encode({"new_data_parallel_size": size, "drain_timeout": options.drain_timeout})
    try:
        async with server.ask("POST", PATH, body, {"Content-Type": "application/json"}) as answer:
            if answer.status != 200:
                return answer.status, await refusal(answer)
            return 200, _told(msgspec.json.decode(await whole(answer)))
    finally:
        await server.close()


def _told(found: dict[str, Any]) -> str:
    parts = [
        f"{found[name]} {text}" for name, text in (("moved", "moved"), ("computed", "computed again")) if found[name]
    ]
    return f"{found['message']}." + (f" Requests of those that left: {', '.join(parts)}." if parts else "")
