"""Prefill and decode on two machines (network namespaces), with each library that moves pages: slow, lossy, cut, and dead.

Whatever happens, an answer has the tokens and log-probabilities of one engine that computes everything.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from tests.apis.test_kv_transfer import ANSWER, Server, told
from tests.nodes.pairs import Pair, is_engine, pair

__all__ = ["pair"]
pytestmark = pytest.mark.nodes
LONG = {**ANSWER, "max_tokens": 24}


def kill(server: Server) -> None:
    """Let a machine die: the server and its engine, at once."""
    for process in (*psutil.Process(server.process.pid).children(recursive=True), server.process):
        process.send_signal(signal.SIGKILL)


def test_answers_are_those_of_one_engine_whatever_the_network_does(pair: Pair) -> None:
    network = pair.network
    with ExitStack() as opened:
        one, other = pair.both(opened, {"A": "prefill", "B": "decode"}, {})
        alone = told(pair.post("A", one, {**LONG, "cache_salt": "alone"}))

        def answered(params: dict[str, Any]) -> bool:
            """Whether a prompt was answered on pages of the other machine; no other one is in the cache, by its salt."""
            before = pair.claims(other, "received")
            salt = params.pop("salt")
            answer = pair.post("B", other, {**LONG, "cache_salt": salt, "kv_transfer_params": params})
            assert told(answer) == alone
            return pair.claims(other, "received") == before + 1

        def prefilled(salt: str) -> dict[str, Any]:
            return {**pair.prefilled(one, cache_salt=salt), "salt": salt}

        assert answered(prefilled("plain"))
        network.delay_s, network.loss = 0.05, 0.01
        assert any([answered(prefilled(f"slow {number}")) for number in range(3)])
        network.delay_s, network.loss = 0.0, 0.0
        params = prefilled("cut")
        network.is_cut = True
        assert not answered(params)
        network.is_cut = False
        params = prefilled("dead")
        kill(one)
        assert not answered(params), "its prompt is computed where it is answered"
    with ExitStack() as opened:
        one, other = pair.both(opened, {"A": "prefill 2", "B": "decode 2"}, {})
        assert answered(prefilled("anew")), "both have been replaced"
        params = prefilled("engine")
        salt = params.pop("salt")
        (engine,) = [each for each in psutil.Process(other.process.pid).children(recursive=True) if is_engine(each)]
        engine.send_signal(signal.SIGKILL)
        answer = pair.post("B", other, {**LONG, "cache_salt": salt, "kv_transfer_params": params})
        assert told(answer) == alone, "the front keeps the request of an engine that has died"
