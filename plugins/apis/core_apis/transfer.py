"""Requests whose keys and values change hands between engines (`kv_transfer_params`).

Owns: whether this server's engine has the role for such a request, and what the engine is told before and after it. Never does:
read the field (`core_apis.protocol.transfer_params`), or move a page (the engine does). Called by: `core_apis.app`, the
pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from core.api.errors import CoreError, RequestError
from core_apis.engine_protocol import ServingEngine
from core_apis.protocol.transfer_params import FIELD, TransferParams, check_leased
from core_apis.watching import Generate, PromptCall
from core_frontend.api.outputs import RequestOutput
from core_frontend.kv_transfer import KVTransfer
from core_kv_connectors.handoff.roles import CONSUMER, PRODUCER, roles_of

logger = logging.getLogger("core_apis")


def check_transfer(engine: ServingEngine, runs: Any) -> None:
    """Raise RequestError where a prepared request asks for a handoff that the engine has no role for."""
    asked = asked_by(runs.body)
    if asked is None:
        return
    if engine.config.data_parallel_size > 1:
        raise RequestError(
            f"{FIELD} is not served: the engines of --data-parallel-size hand requests to one another alone; leave it out.",
            param=FIELD,
        )
    role = roles_of(engine.config)
    if not role:
        raise RequestError(
            f"{FIELD} is not served: this engine has no part in handoffs (--kv-transfer-config.kv_role); leave it out.",
            param=FIELD,
        )
    wrong = {True: CONSUMER, False: PRODUCER}[asked.leases]
    if role == wrong:
        name = "do_remote_decode" if asked.leases else "do_remote_prefill"
        raise RequestError(f"{FIELD}: {name} is not served by an engine with kv_role {role}.", param=FIELD)
    if asked.leases:
        check_leased(stream=bool(runs.body.stream), max_tokens=runs.params.max_tokens, num_prompts=len(runs.prompts))
    elif len(runs.prompts) > 1:
        raise RequestError(f"{FIELD}: do_remote_prefill needs one prompt, since a ticket is of one.", param=FIELD)


def asked_by(body: Any) -> KVTransfer | None:
    """Return what a body asks for; None: nothing, or it cannot. Raises RequestError."""
    given: TransferParams | None = getattr(body, FIELD, None)
    return None if given is None else given.asked()


def with_transfer(generate: Generate, engine: ServingEngine) -> Generate:
    """Wrap `generate` so that requests whose terms ask for it lease or fetch the blocks of their prompts."""

    async def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
        asked = call.terms.transfer
        if asked is None:
            async with aclosing(generate(call)) as outputs:
                async for output in outputs:
                    yield output
            return
        if asked.leases:
            await _call(engine, "watch_kv", call)
        else:
            await _call(engine, "claim_kv", call, source=asked.source, tenant=call.terms.tenant)
        try:
            async with aclosing(generate(call)) as outputs:
                async for output in outputs:
                    if output.finished and asked.leases:
                        output.kv_transfer_params = _told(await _call(engine, "lease_kv", call), call.entry.id)
                    yield output
        finally:
            await _call(engine, "end_kv", call)

    return run


async def _call(engine: ServingEngine, method: str, call: PromptCall, **arguments: Any) -> Any:
    """Call the engine; None while it cannot answer, as after its death: the prompt is then computed where it is needed."""
    try:
        return await engine.control.call(method, request_id=call.request_id, **arguments)
    except CoreError as error:
        logger.debug("The engine takes no part in a handoff of KV: %s", error)
        return None


def _told(lease: dict[str, Any] | None, request_id: str) -> dict[str, Any] | None:
    """Return the field of an answer, for the request to the other engine; None without a lease."""
    if lease is None:
        return None
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": lease["engine_id"],
        "remote_block_ids": [lease["ticket"]],
        "remote_request_id": request_id,
        "remote_host": lease["host"],
        "remote_port": lease["port"],
        "tp_size": 1,
    }
