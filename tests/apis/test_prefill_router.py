"""Prompts that a server has computed by another one: when, with whose key, and what happens when that one fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from core.api.sampling_params import SamplingParams
from core_apis.prefill.choice import Offer, choose
from core_apis.prefill.router import PrefillRouter
from core_apis.watching import PromptCall
from core_config.served.prefill import prefill_problems
from core_frontend.kv_transfer import KVTransfer
from core_frontend.quote.forecast import Ask, Interval
from core_frontend.quote.link import FORGET_S, Link
from core_frontend.request_terms import RequestTerms
from core_observers.families.prefill_metrics import PrefillMetrics

TICKET = {
    "do_remote_prefill": True,
    "remote_host": "10.0.0.7",
    "remote_port": 14579,
    "remote_block_ids": ["a ticket"],
    "remote_engine_id": "P",
}
BYTES = 1_000_000
SECONDS_A_TOKEN = 0.001


class Quotes:
    """What this server takes: so many seconds a token that is not cached, and a wait."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.forecast = self
        self.wait_s = wait_s
        self.is_ready = True

    def ask(self, call: PromptCall, *, remember: bool = True) -> Ask:
        assert not remember, "a question is no use of the cache"
        return Ask(len(call.prompt["prompt_token_ids"]), 8)

    def foretell(self, ask: Ask) -> Any:
        seconds = self.wait_s + SECONDS_A_TOKEN * (ask.prompt - ask.cached)
        return SimpleNamespace(interval=lambda kind: Interval(seconds, seconds)) if self.is_ready else None


class Site:
    """A router in front of servers that answer as they are told."""

    def __init__(self, *there_s: float, quotes: Quotes | None = None) -> None:
        self.calls: list[tuple[str, str, dict[str, Any], httpx.Headers]] = []
        self.there_s = there_s
        self.answers: dict[str, Callable[[], httpx.Response]] = {}
        self.registry = CollectorRegistry()
        urls = [f"http://p{number}:1" for number in range(len(there_s))]
        metrics = PrefillMetrics(self.registry, "core:", "m")
        transport = httpx.MockTransport(self._answer)
        self.router = PrefillRouter(urls, quotes or Quotes(), metrics, transport)  # type: ignore[arg-type]
        self.run_calls: list[PromptCall] = []

    def _answer(self, request: httpx.Request) -> httpx.Response:
        host, path = request.url.host, request.url.path
        self.calls.append((host, path, json.loads(request.content), request.headers))
        if path in self.answers:
            return self.answers[path]()
        if path == "/v1/completions":
            return httpx.Response(200, json={"id": "x", "choices": [], "kv_transfer_params": TICKET})
        first = self.there_s[int(host[1:])]
        quote = {"model": "m", "choices": 1, "first_token": {"low": first, "high": first}, "learned_from": 9}
        quote |= {"end_at_max_tokens": None, "end_at_usual_length": None, "would_be_refused": None, "retry_after": None}
        prompt = {"prompt_tokens": 1000, "cached_tokens": 0, "kv_bytes": BYTES}
        return httpx.Response(200, json=quote | {"prompts": [prompt]})

    async def _generate(self, call: PromptCall) -> AsyncGenerator[Any, None]:
        self.run_calls.append(call)
        explain = SimpleNamespace(prefill=None)
        cached = 992 if call.terms.transfer else 0
        yield SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=[1])], finished=True, explain=explain, num_cached_tokens=cached
        )

    def ask(self, length: int = 1000, **changed: Any) -> Any:
        """Run a prompt of so many tokens; returns where its explanation says that it was computed."""
        call = PromptCall(
            {"prompt_token_ids": list(range(length)), "cache_salt": "s"},
            SamplingParams(),
            "r",
            RequestTerms(**changed.pop("terms", {})),
            None,  # type: ignore[arg-type]
            {"authorization": "Bearer of the client"},
        )
        call = replace(call, **changed)

        async def run() -> Any:
            outputs = [output async for output in self.router.followed(self._generate)(call)]
            return outputs[-1].explain.prefill

        return asyncio.run(run())

    def count(self, outcome: str) -> float:
        labels = {"model_name": "m", "outcome": outcome}
        return self.registry.get_sample_value("core:prefill_choices_total", labels) or 0.0


def test_a_prompt_is_computed_where_that_is_faster() -> None:
    site = Site(0.2, 0.1)
    told = site.ask()
    assert (told.where, told.server, told.here) == ("there", 1, 1.0)
    assert told.there == pytest.approx(0.1 + 1e-9 * BYTES + SECONDS_A_TOKEN, abs=2e-3)
    (call,) = site.run_calls
    assert call.terms.transfer is not None and call.terms.transfer.source is not None
    source = dict(call.terms.transfer.source)
    assert source.pop("limit_s") == pytest.approx(2.0, abs=0.5), "what computing it here takes, and a second"
    assert source == {"host": "10.0.0.7", "port": 14579, "ticket": "a ticket", "engine_id": "P"}
    assert site.count("there") == 1


def test_a_prompt_that_would_wait_there_is_computed_here() -> None:
    site = Site(1.2)
    told = site.ask()
    assert (told.where, told.server) == ("here", None)
    assert told.there > told.here, "both sides of the comparison are told"
    assert site.run_calls[0].terms.transfer is None and site.count("here") == 1
    assert [path for _, path, *_ in site.calls] == ["/v1/quote"], "nothing is computed for a question"


def test_questions_and_prompts_have_the_clients_key_and_salt() -> None:
    site = Site(0.1)
    site.ask()
    assert [path for _, path, *_ in site.calls] == ["/v1/quote", "/v1/completions"]
    for _, _, body, headers in site.calls:
        assert headers["authorization"] == "Bearer of the client"
        assert body["cache_salt"] == "s" and body["prompt"] == list(range(1000)) and body["max_tokens"] == 1
    assert site.calls[1][2]["kv_transfer_params"] == {"do_remote_decode": True}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"length": 20}, "takes less than"),
        ({"terms": {"transfer": KVTransfer(leases=True)}}, "has kv_transfer_params"),
        ({"terms": {"adapter": object()}}, "uses an adapter"),
        ({"params": SamplingParams(prompt_logprobs=1)}, "all are computed"),
        ({"prompt": {"prompt_embeds": object()}}, "more than tokens"),
    ],
    ids=("short", "sent already", "adapter", "scores", "vectors"),
)
def test_prompts_that_cannot_go_or_gain_nothing_are_not_asked_about(changed: dict[str, Any], why: str) -> None:
    site = Site(0.001)
    told = site.ask(**changed)
    assert told.where == "here" and why in told.why and not site.calls


def test_without_a_forecast_nothing_is_sent_away() -> None:
    quotes = Quotes()
    quotes.is_ready = False
    site = Site(0.001, quotes=quotes)
    assert "too little yet" in site.ask().why and not site.calls


def failing() -> httpx.Response:
    raise httpx.ConnectError("connection refused")


@pytest.mark.parametrize(
    "answer",
    [
        failing,
        lambda: httpx.Response(500, text="no"),
        lambda: httpx.Response(404, text="no such path"),
        lambda: httpx.Response(200, text="{"),
        lambda: httpx.Response(200, content=b" " * (2 << 20)),
        lambda: httpx.Response(302, headers={"location": "http://elsewhere:1/"}),
    ],
    ids=("gone", "500", "404", "cut", "endless", "redirect"),
)
@pytest.mark.parametrize("path", ["/v1/quote", "/v1/completions"])
def test_a_server_that_fails_is_left_alone(path: str, answer: Callable[[], httpx.Response]) -> None:
    site = Site(0.1)
    site.answers[path] = answer
    for _ in range(3):
        assert site.ask().where == "here"
    num_calls = len(site.calls)
    told = site.ask()
    assert "left alone" in told.why and len(site.calls) == num_calls
    assert all(call.terms.transfer is None for call in site.run_calls) and len(site.run_calls) == 4
    assert {host for host, *_ in site.calls} == {"p0"}, "no redirect is followed"


@pytest.mark.parametrize("status", [400, 401, 429, 503])
def test_a_server_that_refuses_a_prompt_is_asked_again(status: int) -> None:
    site = Site(0.1)
    site.answers["/v1/quote"] = lambda: httpx.Response(status, text="not now")
    for _ in range(5):
        assert site.ask().where == "here"
    assert len(site.calls) == 5


def test_no_ticket_means_here() -> None:
    site = Site(0.1)
    site.answers["/v1/completions"] = lambda: httpx.Response(200, json={"choices": []})
    told = site.ask()
    assert told.where == "here" and "no ticket" in told.why and site.count("no_ticket") == 1


def test_a_slow_link_is_found_out_and_tried_again_later() -> None:
    now = [0.0]
    link = Link(lambda: now[0])
    offer = Offer(0, 0.1, BYTES)
    assert choose(1.0, 0.0, [offer], [link]).server == 0
    for _ in range(12):
        link.observe(BYTES, 2.0)
    assert choose(1.0, 0.0, [offer], [link]).server is None
    now[0] += 10 * FORGET_S
    assert choose(1.0, 0.0, [offer], [link]).server == 0


def test_the_wait_for_a_place_here_counts_on_both_sides() -> None:
    """Where this server is full of answers, a prompt gains nothing by being computed elsewhere."""
    site = Site(0.9, quotes=Quotes(wait_s=30.0))
    told = site.ask()
    assert told.where == "there" and told.there == pytest.approx(30.9, abs=0.1) and told.here == pytest.approx(31.0)
    assert Site(1.1, quotes=Quotes(wait_s=30.0)).ask().where == "here"


def test_what_the_start_refuses() -> None:
    def problems(**given: Any) -> str:
        values = {"prefill_servers": [], "quotes": True, "kv_peers": ["a:1"], "kv_transfer_config": None, **given}
        merged = SimpleNamespace(value=values.get)
        return " ".join(prefill_problems(merged))  # type: ignore[arg-type]

    fine = ["http://10.0.0.7:8000", "https://p.example"]
    assert not problems(prefill_servers=fine) and not problems()
    for url in ("10.0.0.7:8000", "http://a:1/v1", "ftp://a", "http://u:p@a:1", "http://a:99999", "http://"):
        assert url in problems(prefill_servers=[url])
    assert "add --quotes" in problems(prefill_servers=fine, quotes=False)
    assert "--kv-peers alone" in problems(prefill_servers=fine, kv_peers=[])
    assert "takes no pages" in problems(prefill_servers=fine, kv_transfer_config={"kv_role": "kv_producer"})
    assert "expected at most 64" in problems(prefill_servers=fine * 40)
