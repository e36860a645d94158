"""Engines of this process, between which running requests move, and the one client of them all."""

from pathlib import Path
from typing import Any

from core import LLM, RequestOutput, SamplingParams
from core_frontend.output_processor import RequestState
from core_kv_connectors.handoff.claim import Source
from tests.engine.kv_handoffs import handoffs_of, new_port
from tests.inside import client_of, core_of, with_grammar
from tests.kv.test_peers import until

SETTINGS = {"use_tqdm_on_load": False, "max_model_len": 160, "num_gpu_blocks_override": 48, "max_num_seqs": 2,
            "dtype": "float32"}  # fmt: skip
BLOCK = 16
MOST_STEPS = 20_000


class Pair:
    """Two engines with the same model, each the other's peer, and their client.

    ended: the last outputs of requests, by name.
    """

    def __init__(self, model: Path, **more: Any) -> None:
        ports = new_port(), new_port()
        settings = {"model": str(model), **SETTINGS, **more}
        self.one, self.other = (LLM(**settings, **_both(own, peer)) for own, peer in (ports, tuple(reversed(ports))))
        self.states = self.one._output
        self.ended: dict[str, RequestOutput] = {}

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *error: object) -> None:
        self.one.close()
        self.other.close()

    def begin(
        self, llm: LLM, name: str, prompt: list[int], params: SamplingParams, steps: int, **more: Any
    ) -> RequestState:
        """Run some steps of a request that has just come. more: `grammar`, `adapter`."""
        entry = with_grammar(llm, name, {"prompt_token_ids": prompt}, params, more.get("grammar"))
        for request in entry.requests:
            request.adapter = more.get("adapter", "")
        self.states.add(entry)
        client_of(llm).add(entry.requests)
        for _ in range(steps):
            self.step(llm)
        state = self.states.find(name)
        assert state is not None, "it has not ended yet"
        return state

    def step(self, llm: LLM) -> None:
        """Run a step of an engine that has something to do; otherwise it rests for a moment."""
        client = client_of(llm)
        if not client.has_work():
            core_of(llm).idle()
            return
        processed = self.states.process(client.step())
        client.abort_choices(processed.stopped)
        self.ended |= {output.request_id: output for output in processed.outputs if output.finished}

    def finish(self, name: str) -> RequestOutput:
        """Run both engines until a request has ended; returns its last output."""
        for _ in range(MOST_STEPS):
            if name in self.ended:
                return self.ended.pop(name)
            self.step(self.one)
            self.step(self.other)
        raise AssertionError(f"{name} does not end")

    def claim(self, llm: LLM, state: RequestState, lease: dict[str, Any], num_choices: int = 0) -> str:
        """Have an engine claim the pages of a request that is to come; returns why it does not."""
        where = {key: lease[key] for key in ("ticket", "host", "port", "engine_id")}
        num_choices = num_choices or len(state.num_given())
        return handoffs_of(llm).claim(state.request_id, Source(**where), state.requests[0].tenant, num_choices)

    def move(self, source: LLM, target: LLM, state: RequestState) -> dict[str, Any] | None:
        """Stop a request in one engine and send it to the other, as the moves of a group do; returns the lease."""
        lease = handoffs_of(source).hand_over(state.request_id)
        if lease is not None:
            assert self.claim(target, state, lease) == ""
        client_of(source).abort([state.request_id])
        client_of(target).add(state.resumed())
        return lease

    def abort(self, name: str) -> None:
        """Leave as a client does."""
        for llm in (self.one, self.other):
            client_of(llm).abort([name])
        self.states.abort([name])

    def empty(self) -> None:
        """Forget what both engines have cached."""
        for llm in (self.one, self.other):
            assert llm.reset_prefix_cache()

    def outcome(self, llm: LLM, name: str) -> dict[str, Any]:
        """What became of the pages of a request that has moved to an engine."""
        found = handoffs_of(llm)._arrivals.take(name)
        assert found is not None
        return found

    def check_nothing_is_left(self) -> None:
        """Wait until no engine has a lease, a claim or a page of one, and every block is free."""
        for llm in (self.one, self.other):
            until(lambda llm=llm: self._is_empty(llm))
            counts, core = handoffs_of(llm).counts(), core_of(llm)
            assert not counts.get("leased_pages") and not counts["watched"]
            core.scheduler.check_integrity()
            assert core.scheduler.kv.usage == 0.0

    def _is_empty(self, llm: LLM) -> bool:
        self.step(llm)
        counts = handoffs_of(llm).counts()
        return not any(counts.get(name) for name in ("leases", "claims", "buffered_bytes", "waiting"))


def _both(own: int, peer: int) -> dict[str, Any]:
    """Arguments of an engine that hands over at one port and takes from the engine at the other."""
    config = {"kv_connector": "tcp", "kv_role": "kv_both", "kv_port": own}
    return {"kv_transfer_config": config, "kv_peers": [f"127.0.0.1:{peer}"]}


def known(state: RequestState, num_prompt_tokens: int) -> int:
    """Tokens of all choices in full blocks, without the last token of each, which is never computed yet."""
    return sum((num_prompt_tokens + given - 1) // BLOCK * BLOCK for given in state.num_given().values())
