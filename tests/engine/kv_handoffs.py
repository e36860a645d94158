"""Two engines of this process, the second of which answers on KV blocks that the first has computed and leased to it."""

from typing import Any

from core import LLM, RequestOutput, SamplingParams
from core_kv_connectors.handoff.claim import Source
from core_kv_connectors.handoff.connector import Handoff
from core_observers.engine.kv_handoff import KVHandoffs
from tests.apis.serving_processes import free_port
from tests.inside import core_of, run_entries, with_grammar

TCP = {"kv_connector": "tcp"}


def producing(port: int, **more: Any) -> dict[str, Any]:
    """Arguments of an engine that leases its blocks at a port."""
    return {"kv_transfer_config": {**TCP, "kv_role": "kv_producer", "kv_port": port, "engine_id": "P"}, **more}


def consuming(port: int, **more: Any) -> dict[str, Any]:
    """Arguments of an engine that takes those of the engine at a port."""
    return {"kv_transfer_config": {**TCP, "kv_role": "kv_consumer"}, "kv_peers": [f"127.0.0.1:{port}"], **more}


def new_port() -> int:
    """A free port."""
    return free_port()


def handoffs_of(llm: LLM) -> KVHandoffs:
    """The observer of an engine."""
    return next(one for one in core_of(llm).observers if isinstance(one, KVHandoffs))


def connector_of(llm: LLM) -> Handoff:
    """The connector of an engine."""
    connectors = core_of(llm).kv_services.connectors
    return next(one for one in connectors if isinstance(one, Handoff))


def prefill(llm: LLM, name: str, prompt: list[int]) -> dict[str, Any]:
    """Compute a prompt and lease its blocks; returns the lease."""
    observer = handoffs_of(llm)
    assert observer.watch(name)
    run_entries(llm, [with_grammar(llm, name, {"prompt_token_ids": prompt}, SamplingParams(max_tokens=1), None)])
    lease = observer.lease(name)
    observer.end(name)
    assert lease is not None
    return lease


def decode(
    llm: LLM,
    name: str,
    prompt: list[int],
    params: SamplingParams,
    lease: dict[str, Any],
    grammar: Any = None,
    tenant: str = "",
) -> RequestOutput:
    """Answer a prompt on leased blocks."""
    observer = handoffs_of(llm)
    observer.claim(name, Source(**lease), tenant)
    entry = with_grammar(llm, name, {"prompt_token_ids": prompt}, params, grammar)
    (output,) = run_entries(llm, [entry])
    observer.end(name)
    return output


def told(output: RequestOutput) -> list[Any]:
    """Tokens and log-probabilities of all answers."""
    return [
        (list(one.token_ids), [[(token, entry.logprob) for token, entry in row.items()] for row in one.logprobs or []])
        for one in output.outputs
    ]
