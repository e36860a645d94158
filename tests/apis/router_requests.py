"""What other people's routers send to an engine that computes prompts and to one that answers.

`toy` and `multiturn` are vLLM's (toy_proxy_server.py, disagg_proxy_multiturn.py; `make test-proxies` runs them). `sidecar` is
llm-d's, by its source (llm-d-router, pkg/sidecar/proxy/connector_nixlv2.go): it needs Go and a cluster, and was not run.
"""

from __future__ import annotations

from typing import Any, Final

NOTHING: Final = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
DECODE: Final[dict[str, Any]] = {"do_remote_decode": True, "do_remote_prefill": False, **NOTHING}
ROUTERS: Final = ("toy", "multiturn", "sidecar")


def to_prefill(router: str, body: dict[str, Any]) -> dict[str, Any]:
    """The request for the engine that computes the prompt of `body`."""
    sent = {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens")}
    sent |= {"kv_transfer_params": DECODE, "stream": False, "max_tokens": 1}
    if router == "multiturn":
        sent.pop("max_completion_tokens", None)
    elif router == "sidecar" or "max_completion_tokens" in sent:
        sent["max_completion_tokens"] = 1
    return sent


def to_decode(router: str, body: dict[str, Any], answer: dict[str, Any], host: str) -> dict[str, Any]:
    """The request for the engine that answers. answer: of the first engine. host: at which the router reaches it."""
    params = dict(answer["kv_transfer_params"])
    if router != "multiturn":
        return {**body, "kv_transfer_params": params}
    return {**body, "kv_transfer_params": {**params, "remote_host": host}, "stream": True}
