"""What a server of prompts (`--prefill-servers`) answers, damaged: a prompt is then computed here, and nothing is raised.

Owns: good answers, and a server that is asked over a transport without a network. Never does: damage anything. Called by: the
table of targets.
"""

import asyncio
import json
import math
from pathlib import Path

import httpx

from core_apis.prefill.choice import choose
from core_apis.prefill.server import PrefillServer
from core_apis.protocol.transfer_params import MOST_TICKET
from core_frontend.quote.link import Link

NAMES = ("quote", "ticket")
LIMIT_S = 5.0
RANGE = {"low": 0.2, "high": 0.4}
QUOTE = {
    "model": "m", "choices": 1, "first_token": RANGE, "end_at_max_tokens": {"tokens": 1, "seconds": RANGE},
    "end_at_usual_length": None, "would_be_refused": None, "retry_after": None, "learned_from": 9,
    "prompts": [{"prompt_tokens": 1000, "cached_tokens": 0, "kv_bytes": 1_000_000}], "object": "quote",
}  # fmt: skip
TICKET = {
    "do_remote_prefill": True, "remote_host": "10.0.0.7", "remote_port": 14579, "remote_block_ids": ["a ticket"],
    "remote_engine_id": "P",
}  # fmt: skip


def make_answers(folder: Path) -> None:
    """Write what a server answers, and look that it is understood. Raises AssertionError."""
    (folder / "quote").write_text(json.dumps(QUOTE))
    (folder / "ticket").write_text(json.dumps({"id": "x", "choices": [], "kv_transfer_params": TICKET}))
    assert read_answers(folder) == 2, "good answers are not understood"


def read_answers(folder: Path) -> int:
    """Ask for a quote and for a prompt; returns how many of the two were had. Raises AssertionError for numbers that no
    comparison can use.
    """
    return asyncio.run(_asked((folder / "quote").read_bytes(), (folder / "ticket").read_bytes()))


async def _asked(quote: bytes, ticket: bytes) -> int:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=quote if request.url.path == "/v1/quote" else ticket)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        server = PrefillServer(0, "http://p", client)
        offer = await server.quote({"prompt": [1, 2]}, {}, LIMIT_S)
        transfer = await server.compute({"prompt": [1, 2]}, {}, LIMIT_S)
    if offer is not None:
        assert math.isfinite(offer.first_s) and offer.first_s >= 0 and offer.num_bytes >= 0, offer
        link = Link()
        choice = choose(10.0, 0.1, [offer], [link])
        assert choice.there_s is not None and math.isfinite(choice.there_s), choice
        link.observe(offer.num_bytes, 1.0)
        assert math.isfinite(link.seconds(1 << 30)), "a link is ruined"
    if transfer is not None and transfer.source is not None:
        assert len(transfer.source["ticket"]) <= MOST_TICKET and isinstance(transfer.source["port"], int), transfer
    return (offer is not None) + (transfer is not None)
