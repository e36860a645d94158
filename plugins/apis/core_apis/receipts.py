"""Receipts of a server's answers.

Owns: `ServerReceipts`: which requests get one, and reading the weight files whole while the engine is idle. Never does: make a
receipt (`core_observers.receipts` does). Called by: `core_apis.app` (builds), the pipeline, the code that starts the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from core.api.errors import RequestError
from core_apis.engine_protocol import ServingEngine
from core_apis.traffic.recorder import TrafficRecorder
from core_config.served.server_config import ReceiptSettings, ServerConfig
from core_observers.receipts.facts import engine_facts, template_of
from core_observers.receipts.issuer import ReceiptIssuer
from core_observers.receipts.signing import SigningKey, read_key
from core_observers.receipts.weights import WeightsDigest

HEADER = "x-receipt"
NO = ("", "0", "false", "no")
"""Values of the header, in lower case, that ask for no receipt."""
BUSY_S = 0.1
"""Seconds between two looks at an engine that computes."""


class ServerReceipts:
    """The receipts of one server.

    every: whether every answer gets one. issuer: makes them. digest: of the engine's weight files.
    """

    def __init__(self, every: bool, issuer: ReceiptIssuer, digest: WeightsDigest) -> None:
        self.every = every
        self.issuer = issuer
        self.digest = digest

    async def read_weights(self, engine: ServingEngine) -> None:
        """Read the weight files piece by piece while no request is live, until they are known whole."""
        more = not self.digest.is_whole
        while more:
            if engine.num_live:
                await asyncio.sleep(BUSY_S)
            else:
                more = await asyncio.to_thread(self.digest.step)


def server_receipts(
    settings: ReceiptSettings | None, engine: ServingEngine, template: str | None
) -> ServerReceipts | None:
    """Build the receipts of a server; None where it gives none. template: its own chat template.

    Raises UserError for a key that cannot sign.
    """
    if settings is None:
        return None
    key = None if settings.key_file is None else read_key(settings.key_file)
    if key is not None:
        key.sign(b"")  # a public key is refused at the start
    digest = WeightsDigest(engine.config.model.model)
    return ServerReceipts(settings.every, engine_issuer(engine, template, digest, key), digest)


def traffic_recorder(server: ServerConfig, engine: ServingEngine, template: str | None) -> TrafficRecorder | None:
    """Build the recorder of traffic; None where nothing is recorded. Raises UserError for an unfit directory."""
    if server.recording is None:
        return None
    issuer = engine_issuer(engine, template, WeightsDigest(engine.config.model.model))
    return TrafficRecorder(server.recording, server, issuer)


def engine_issuer(
    engine: ServingEngine, template: str | None, digest: WeightsDigest, key: SigningKey | None = None
) -> ReceiptIssuer:
    """Return an issuer for an engine. template: the server's own chat template, as its text. key: signs; None: nothing does."""
    tokenizer = engine.tokenizer
    source = template_of(tokenizer.chat_template, tokenizer.named_templates, template)
    facts = engine_facts(engine.config, engine.ready.numerics, source)
    return ReceiptIssuer(facts, lambda: digest.fact(engine.stats.weight_version), key)


def note_receipt(receipts: ServerReceipts | None, body: Any, headers: Mapping[str, str]) -> None:
    """Set whether an answer gets a receipt: as the body says, else the header, else the server.

    Raises RequestError where one is asked for and the server gives none.
    """
    if not hasattr(body, "receipt"):
        return
    header = headers.get(HEADER)
    if body.receipt is None and header is not None:
        body.receipt = header.strip().lower() not in NO
    if receipts is None and body.receipt:
        raise RequestError(
            "receipt is asked for, but this server gives none (--receipts off); leave it out.", param="receipt"
        )
    if receipts is not None and body.receipt is None:
        body.receipt = receipts.every
