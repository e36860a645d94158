"""One turn over HTTP: the time to the first token, the answer's tokens, and what the server says of its cache.

Owns: the two forms of requests and their streams. Never does: decide what to ask. Called by: the scenarios.

Prompts are token ids, so that every server computes the same tokens and no template or tokenizer takes part.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peer.environment import PeerError

LIMIT_S = 280.0


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer. Times in seconds; prefill: by the server's own clock, None where it tells none.

    known: tokens of the prompt that the agent had sent or received before.
    """

    ids: list[int]
    prompt: int
    known: int
    cached: int
    ttft: float
    total: float
    prefill: float | None

    def figures(self) -> dict[str, float]:
        """Return what is kept of it."""
        found = {"prompt": self.prompt, "known": self.known, "cached": self.cached, "ttft": self.ttft, "s": self.total}
        return found if self.prefill is None else found | {"prefill": self.prefill}


def ask(port: int, native: bool, prompt: list[int], known: int, max_tokens: int) -> Turn:
    """Send one turn. native: the form of llama.cpp's `/completion`; else `/v1/completions`. Raises PeerError."""
    path, data = request_of(native, prompt, max_tokens)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    begin = time.perf_counter()
    first, ids, usage, timings = None, list[int](), dict[str, Any](), dict[str, Any]()
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise PeerError(f"{answer.status}: {answer.read()[:300].decode(errors='replace')}")
        for arrival, event in events(answer):
            choice = event if native else next(iter(event.get("choices", [])), {})
            new = choice.get("tokens" if native else "token_ids") or []
            if new and first is None:
                first = arrival
            ids += new
            usage, timings = event.get("usage") or usage, event.get("timings") or timings
    except OSError as error:
        raise PeerError(f"no answer: {error!r}") from error
    finally:
        connection.close()
    total = time.perf_counter() - begin
    if first is None:
        raise PeerError("the answer has no tokens")
    details = usage.get("prompt_tokens_details") or {}
    cached = timings.get("cache_n", 0) if native else details.get("cached_tokens", 0)
    prefill = timings["prompt_ms"] / 1e3 if timings else None
    return Turn(ids, len(prompt), known, cached, first - begin, total, prefill)


def request_of(native: bool, prompt: list[int], max_tokens: int) -> tuple[str, str]:
    """Return path and body of a request; native: as for `ask`."""
    body: dict[str, Any] = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "stream": True}
    if native:
        return "/completion", json.dumps(body | {"n_predict": max_tokens, "cache_prompt": True, "return_tokens": True})
    body |= {"model": "agents", "max_tokens": max_tokens, "return_token_ids": True, "timings": True}
    return "/v1/completions", json.dumps(body | {"stream_options": {"include_usage": True}})


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the time and the object of each server-sent event. Raises PeerError for an event that is an error.

    The first event of our server and vLLM's repeats the ids of the prompt, so reading it takes this process a while.
    """
    for line in answer:
        arrival = time.perf_counter()
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise PeerError(str(event["error"])[:300])
        yield arrival, event
