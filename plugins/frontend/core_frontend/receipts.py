"""The issuer of receipts of an engine in this process.

Owns: which facts it states. Never does: make a receipt. Called by: `LLM`, the first time that a receipt is asked for.
"""

from __future__ import annotations

from core.api.config import EngineConfig
from core_frontend.stepped import SteppedClient
from core_observers.receipts.facts import engine_facts, template_of
from core_observers.receipts.issuer import ReceiptIssuer
from core_observers.receipts.weights import WeightsDigest
from core_tokens.tokenizer import Tokenizer


def own_issuer(
    config: EngineConfig, client: SteppedClient, tokenizer: Tokenizer | None, template: str | None
) -> ReceiptIssuer:
    """Return the issuer of an engine. Its weight files are read whole here, since the caller waits for nothing else.

    template: the chat template that the engine was given; None: those of the tokenizer.
    Raises RequestError for several engines, whose workers are in other processes.
    """
    source = None if tokenizer is None else template_of(tokenizer.chat_template, tokenizer.named_templates, template)
    facts = engine_facts(config, client.worker.numerics, source)
    digest = WeightsDigest(config.model.model)
    digest.finish()
    return ReceiptIssuer(facts, lambda: digest.fact(client.stats().weight_version))
