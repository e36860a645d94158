"""Deaths in each state of a handoff between two machines (network namespaces): engines, ranks and fronts of both."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.apis.test_kv_transfer import ANSWER, Server, until_ready
from tests.nodes.pairs import LIMIT_S, Pair, Stream, is_engine, pair, until

__all__ = ["pair"]
pytestmark = pytest.mark.nodes
LONGER = {**ANSWER, "n": 1, "max_tokens": 350, "stream": True}
PROCESSES = (("A", "engine"), ("A", "front"), ("B", "engine"), ("B", "rank"), ("B", "front"))
STATES = ("leased", "claimed", "answering")
LENGTH = ("--max-model-len", "512")
MORE = {"A": (*LENGTH, "--kv-lease", "3"), "B": (*LENGTH, "--tensor-parallel-size", "2")}


def end(victim: psutil.Process, server: Server) -> None:
    """Kill a process of a server, perhaps its front."""
    victim.kill()
    if victim.pid == server.process.pid:
        server.process.wait(LIMIT_S)


DYING = [*(("tcp", *process) for process in PROCESSES), ("nixl", "A", "front"), ("nixl", "B", "front")]


@pytest.mark.parametrize(("pair", "side", "which"), DYING, indirect=["pair"])
def test_a_process_dies_in_each_state(pair: Pair, side: str, which: str) -> None:
    """An engine, a front or a rank, while the lease waits, while its pages are on their way, and in the answer.

    The machine that answers has two ranks, so that pages are arranged anew.
    """
    running: dict[str, tuple[Server, Path]] = {}
    with ExitStack() as opened:

        def ready(side: str) -> Server:
            """The server of a machine; another one where its front was killed."""
            if side not in running or running[side][0].process.poll() is not None:
                name = f"{side} {len(list(pair.place.iterdir()))}"
                running[side] = opened.enter_context(pair.server(side, name, *MORE[side])), pair.place / name
            server, log = running[side]
            with pair.network.inside(side):
                until_ready(server, log)
            return server

        def answered(salt: str, params: dict[str, Any] | None = None) -> Stream:
            return Stream(pair, ready("B"), {**LONGER, "cache_salt": salt, "kv_transfer_params": params})

        names = {side: f"{side} at first" for side in MORE}
        for side_of, server in zip(MORE, pair.both(opened, names, MORE), strict=True):
            running[side_of] = server, pair.place / names[side_of]
        whole = answered("alone")
        whole.end()
        assert whole.is_whole and len(whole.tokens) == LONGER["max_tokens"]
        for state in STATES:
            salt = f"{side} {which} {state}"
            params = pair.prefilled(ready("A"), cache_salt=salt)
            ready("B")
            front = psutil.Process(running[side][0].process.pid)
            below = front.children(recursive=True)
            (engine,) = filter(is_engine, below)
            ranks = [each for each in below if any("core_distributed.rank" in word for word in each.cmdline())]
            victim = {"engine": [engine], "front": [front], "rank": ranks}[which][0]
            if state == "leased":
                end(victim, running[side][0])
            pair.network.delay_s = 0.2 if state == "claimed" else 0.0
            stream = answered(salt, params)
            if state == "claimed":
                until(pair.is_claimed, "no claim was made")
            elif state == "answering":
                assert stream.has_begun.wait(LIMIT_S)
            if state != "leased":
                end(victim, running[side][0])
            pair.network.delay_s = 0.0
            stream.end()
            assert stream.tokens == whole.tokens[: len(stream.tokens)], salt
            is_gone = (side, which) == ("B", "front") and state != "leased"
            assert stream.is_whole or is_gone, f"{salt}: a request is lost"
            if which == "front":
                assert not psutil.wait_procs([engine, *ranks], LIMIT_S)[1], "an engine outlives its server"
            until(lambda: not pair.leases(ready("A")), f"{salt}: a lease is left")
        before = pair.claims(ready("B"), "received")
        last = answered("last", pair.prefilled(ready("A"), cache_salt="last"))
        last.end()
        assert last.is_whole and last.tokens == whole.tokens
        assert pair.claims(ready("B"), "received") == before + 1
