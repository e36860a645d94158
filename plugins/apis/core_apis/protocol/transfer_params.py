"""The field `kv_transfer_params` of a request, in vLLM's form.

Owns: `TransferParams`: its keys, and which requests may have it. Never does: trust a value: each is what a client says. Called
by: the request bodies, and `core_apis.transfer`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from core.api.errors import RequestError
from core_frontend.kv_transfer import KVTransfer

FIELD: Final = "kv_transfer_params"
MOST_TICKET: Final = 1024
"""Longest ticket that is passed on; ours have less than 400 characters."""
Name = Annotated[str, msgspec.Meta(max_length=256)]


class TransferParams(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Its keys. A proxy hands on those of the producer's answer as they are.

    do_remote_decode:  compute the prompt, and lease its blocks to the engine that answers.
    do_remote_prefill: take the blocks of the prompt from the engine at remote_host and remote_port.
    remote_block_ids:  the ticket, the only item of the list; anything else is a ticket of no engine.
    remote_engine_id:  name of the engine that wrote the ticket.
    remote_request_id: id of its request, for logs; tp_size: of that engine. Both change nothing.
    """

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: Name | None = None
    remote_block_ids: list[Any] | None = None
    remote_request_id: Name | None = None
    remote_host: Name | None = None
    remote_port: int | None = None
    tp_size: int | None = None

    def asked(self) -> KVTransfer | None:
        """Return what is asked for; None: nothing. Raises RequestError where that contradicts itself."""
        if self.do_remote_decode and self.do_remote_prefill:
            raise RequestError(
                f"{FIELD}: do_remote_decode and do_remote_prefill are for two requests to two engines; give one.",
                param=FIELD,
            )
        if self.do_remote_decode:
            return KVTransfer(leases=True)
        if not self.do_remote_prefill:
            return None
        ids = self.remote_block_ids or []
        ticket = ids[0] if len(ids) == 1 and isinstance(ids[0], str) and len(ids[0]) <= MOST_TICKET else ""
        source = {
            "host": self.remote_host or "",
            "port": self.remote_port or 0,
            "ticket": ticket,
            "engine_id": self.remote_engine_id or "",
        }
        return KVTransfer(source=source)


def check_leased(*, stream: bool, max_tokens: int | None, num_prompts: int) -> None:
    """Raise RequestError for a request that leases its blocks and asks for more than its prompt."""
    wrong = ""
    if stream:
        wrong = "stream to be false"
    elif max_tokens != 1:
        wrong = "max_tokens 1: the other engine answers"
    elif num_prompts > 1:
        wrong = "one prompt"
    if wrong:
        raise RequestError(f"{FIELD}: do_remote_decode needs {wrong}.", param=FIELD)
