"""Damaged messages to an engine: whatever a client sends, the requests of others give the tokens of an undisturbed engine.

Owns: good messages of a client, an engine loop over a socket that is a list, and what must hold afterwards.
Never does: damage anything. Called by: the table of targets.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from core.api.messages import (
    CLIENT_SHIFT,
    AbortChoices,
    AbortRequests,
    AddRequest,
    EngineOutputs,
    EngineReady,
    EngineRequest,
    Leave,
    Resume,
    Shutdown,
    Utility,
    UtilityResult,
)
from core.api.sampling_params import SamplingParams
from core.api.step_plan import StepPlan, StepResult
from core.engine import wire
from core.engine.clients import Clients
from core.engine.core import EngineCore
from core.engine.hello import GREETING
from core.engine.loop import EngineLoop
from tests.engine.fakes import VOCAB_SIZE, composed, make_config, next_token, reference

OWNER, GUEST = b"owner", b"guest"
GUEST_HANDLE = 1 << CLIENT_SHIFT
PROMPT, NUM_TOKENS = [5, 6, 7], 12
EPOCH = 3
NAMES = ("1-greeting", "2-add", "3-resume", "4-call", "5-choices", "6-abort", "7-shutdown", "8-leave")


def make_messages(folder: Path) -> None:
    """What a client may say to an engine; its first words too."""
    params = SamplingParams(max_tokens=9, temperature=0.5, logprobs=1, stop_token_ids=[3], logit_bias={4: 1.5})
    allowed = np.arange(VOCAB_SIZE, dtype=np.int64).tobytes()
    request = EngineRequest("a", 0, [1, 2, 3], params, 2**63, [3, 4], [4], [[5, 6]], allowed, user="u", cache_salt="s")
    handles = [GUEST_HANDLE, GUEST_HANDLE + 1]
    short = SamplingParams(max_tokens=9)
    resumed = EngineRequest("b", 0, [1, 2], short, 1, resume=Resume(reference([1, 2], 4), 2))
    messages = {
        "1-greeting": GREETING,
        "2-add": wire.encode(AddRequest(request, handles)),
        "3-resume": wire.encode(AddRequest(resumed, [GUEST_HANDLE + 2])),
        "4-call": wire.encode(Utility(1, "ping", {"a": [1, {"b": None}]})),
        "5-choices": wire.encode(AbortChoices([("a", 1), ("zzz", 0)])),
        "6-abort": wire.encode(AbortRequests(["b"])),
        "7-shutdown": wire.encode(Shutdown()),
        "8-leave": wire.encode(Leave(0)),
    }
    for name, data in messages.items():
        (folder / name).write_bytes(data)


def read_messages(folder: Path) -> None:
    """A guest sends the folder while the owner's request runs. Raises AssertionError when the owner is disturbed."""
    names = sorted(path.name for path in folder.iterdir())
    said = [(GUEST, [(folder / name).read_bytes()]) for name in names]
    params = SamplingParams(max_tokens=NUM_TOKENS)
    asked = [AddRequest(EngineRequest(name, 0, PROMPT, params, seed=1), [handle]) for handle, name in enumerate("xy")]
    words = [Utility(7, "check_integrity"), asked[1], Utility(8, "check_integrity"), Shutdown()]
    first = [(OWNER, [GREETING, b""]), (OWNER, [wire.encode(asked[0])])]
    socket = ListSocket([[*first, *said], *([(OWNER, [wire.encode(word)])] for word in words)])
    config = make_config()
    executor = StrictExecutor()
    core = composed(config, executor, EPOCH)
    clients = Clients(socket)  # type: ignore[arg-type]
    ready = EngineReady(EPOCH, executor.num_blocks, 4, 64, executor.numerics, [])
    try:
        clients.receive()  # the owner's greeting, as `await_owner` takes it
        EngineLoop(core, clients, ready).run()
    finally:
        core.close()
    _judge(core, clients, socket, executor)


def _judge(core: EngineCore, clients: Clients, socket: ListSocket, executor: StrictExecutor) -> None:
    """The owner got what is its own, and nothing is left of the guest's requests."""
    tokens: dict[int, list[int]] = {}
    ends = []
    answers = []
    for message in socket.heard(OWNER):
        match message:
            case EngineOutputs():
                for handle, _, token in message.tokens:
                    tokens.setdefault(handle, []).append(token)
                for output in message.outputs:
                    tokens.setdefault(output.handle, []).extend(output.token_ids)
                    if output.finish_reason is not None:
                        ends.append((output.handle, output.finish_reason))
            case UtilityResult():
                answers.append((message.call_id, message.ok))
    wanted = reference(PROMPT, NUM_TOKENS)
    assert tokens == {0: wanted, 1: wanted}, f"the owner got {tokens}"
    assert ends == [(0, "length"), (1, "length")], ends
    assert answers == [(7, True), (8, True)], answers
    assert not executor.strange, executor.strange
    left = {client.number: client.live for client in clients if client.live}
    assert not left, f"these requests never end: {left}"
    stats = core.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0), stats
    assert (stats.num_failed_steps, stats.num_violations) == (0, 0), stats


Said = tuple[bytes, list[bytes]]


class ListSocket:
    """A ROUTER whose messages are there already. rounds: each comes when the engine waits for something to do."""

    def __init__(self, rounds: list[list[Said]]) -> None:
        self.rounds = deque(rounds[1:])
        self.waiting = deque(rounds[0])
        self.sent: list[Said] = []

    def setsockopt(self, *_: object) -> None:
        pass

    def getsockopt(self, _: int) -> int:
        return zmq.POLLIN if self.waiting else 0

    def poll(self, timeout: int | None = None) -> int:
        if not self.waiting and timeout != 0 and self.rounds:
            self.waiting += self.rounds.popleft()
        return len(self.waiting)

    def recv_multipart(self) -> list[bytes]:
        identity, frames = self.waiting.popleft()
        return [identity, *frames]

    def send_multipart(self, frames: list[bytes]) -> None:
        self.sent.append((frames[0], frames[1:]))

    def heard(self, identity: bytes) -> list[Any]:
        """Messages to a client, without the greeting."""
        decoder = wire.engine_message_decoder()
        payloads = [frames[0] for to, frames in self.sent if to == identity]
        return [decoder.decode(payload) for payload in payloads[1:]]


class StrictExecutor:
    """Computes the fakes' next token, and notes whatever a real worker could stumble over.

    strange: what no plan may hold.
    """

    numerics = "strict"
    page_bytes = 64
    num_blocks = 64
    phases: tuple[()] = ()

    def __init__(self) -> None:
        self.known: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.strange: list[str] = []

    def execute(self, plan: StepPlan) -> StepResult:
        for slot in plan.removed:
            self.known.pop(slot, None)
        for new in plan.new:
            self._check(new.request)
            self.known[new.slot] = new.request.prompt_token_ids + new.output_token_ids
            self.computed[new.slot] = new.num_computed_tokens
        sampled: dict[int, int] = {}
        for slot, count in zip(plan.slots.tolist(), plan.query_lens.tolist(), strict=True):
            self.computed[slot] += count
            if self.computed[slot] == len(self.known[slot]):
                sampled[slot] = next_token(self.known[slot])
                self.known[slot].append(sampled[slot])
        slots = np.array(list(sampled), np.int32)
        return StepResult(slots, np.array(list(sampled.values()), np.int32))

    def close(self) -> None:
        pass

    def _check(self, request: EngineRequest) -> None:
        columns = {
            "prompt": request.prompt_token_ids,
            "output": request.resume.output_token_ids if request.resume else [],
            "stops": request.stop_token_ids,
            "bad words": [token for word in request.bad_words_ids for token in word],
            "bias": list(request.params.logit_bias or ()),
        }
        for name, token_ids in columns.items():
            if any(not 0 <= token < VOCAB_SIZE for token in token_ids):
                self.strange.append(f"{name}: {token_ids[:9]}")
        if not 0 <= request.seed < 2**64 or not 0 <= request.choice < 2**31:
            self.strange.append(f"seed {request.seed}, choice {request.choice}")
        if len(request.allowed_ids) % 8:
            self.strange.append(f"{len(request.allowed_ids)} bytes of allowed ids")
        elif any(not 0 <= token < VOCAB_SIZE for token in np.frombuffer(request.allowed_ids, np.int64)):
            self.strange.append("allowed ids")
        if any(not word for word in request.bad_words_ids):
            self.strange.append("an empty bad word")
