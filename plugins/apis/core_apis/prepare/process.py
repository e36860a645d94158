"""The helper process that prepares requests (`core_supervision.helpers`).

Owns: the messages between it and the server, and the answer to each job. Never does: import torch. Called by:
`core_apis.prepare.helper`, as a child.

The first message is `Start`, as msgpack; then jobs go one way, each the name of its kind (its length in one byte, then its
letters) and the body as it came, and an `Answer`, as msgpack, the other.
"""

from __future__ import annotations

import gc
import sys
import traceback
from array import array
from typing import Any

import msgspec

from core.api.errors import RequestError
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparationSettings, Prompt
from core_apis.prepare.render_limits import RenderLimits
from core_apis.protocol.decoding import too_deep
from core_runtime.executor.host_memory import release_unused_memory
from core_supervision.helpers.child import Parent, run
from core_supervision.helpers.messages import Refusal
from core_tokens.tokenizer import Tokenizer, TokenizerSnapshot

NOTHING = memoryview(b"")
SHORT_PROMPT = 1024
"""Maximum number of token ids that are sent as numbers of msgpack, which takes 10 ns each to read and holds the
interpreter for as long.
"""
PIECE = 16_384
"""Number of token ids that are read in one call."""
GROWN_BYTES = 256 << 20
"""Memory growth in bytes since the start after which the process is replaced by a new one."""


class Start(msgspec.Struct, array_like=True):
    """The settings that the process needs once, at its start."""

    settings: PreparationSettings
    tokenizer: TokenizerSnapshot


class Answer(msgspec.Struct, array_like=True):
    """The answer to one body.

    result: msgpack of the kind's result, empty with a refusal. The token ids of its long prompts are left out.
    token_ids: of its prompts in order, uint32 in the machine's byte order; empty if the result has them.
    """

    result: memoryview
    refusal: Refusal | None = None
    token_ids: list[memoryview] = []

    @property
    def num_bytes(self) -> int:
        """Return the size of everything that has to be decoded."""
        return len(self.result) + sum(map(len, self.token_ids))

    def decoded(self, form: type[msgspec.Struct]) -> Any:
        """Decode the whole result; form: its type.

        Long ones are read in a thread, which yields to others within a prompt.
        """
        result: Any = msgspec.msgpack.decode(self.result, type=form)
        for prompt, packed in zip(prompts_of(result), self.token_ids, strict=False):
            if packed:
                ids = prompt.token_ids
                numbers = packed.cast("I")
                for start in range(0, len(numbers), PIECE):
                    ids += numbers[start : start + PIECE].tolist()
        return result


def prompts_of(result: Any) -> list[Prompt]:
    """Return the prompts of a result of any kind."""
    found: list[Prompt] = getattr(getattr(result, "chat", result), "prompts", [])
    return found


def job_header(kind: str) -> bytes:
    """Return what precedes a body of this kind."""
    name = kind.encode()
    return bytes([len(name)]) + name


def serve(parent: Parent) -> None:
    """Serve jobs until the server hangs up, or this process has grown."""
    facts = parent.first(Start)
    limits = RenderLimits()
    preparation = Preparation(facts.settings, Tokenizer.restore(facts.tokenizer), limits)
    del facts  # with the tokenizer's JSON, the source of half of the memory at the start
    release_unused_memory()
    gc.freeze()  # all of this lives for ever, so no collection needs to look at it again
    parent.settle()

    def work(payload: memoryview) -> tuple[Answer, bool]:
        start = 1 + payload[0]
        answer, is_last = _answer(preparation, bytes(payload[1:start]).decode(), payload[start:])
        return answer, is_last or limits.is_exhausted

    parent.serve(work)


def _answer(preparation: Preparation, kind: str, data: memoryview) -> tuple[Answer, bool]:
    """Return the answer to a job, and whether it leaves the process unfit for others."""
    try:
        result: Any = preparation.run(kind, data)
        token_ids = [_taken_out(prompt) for prompt in prompts_of(result)]
        return Answer(memoryview(msgspec.msgpack.encode(result)), None, token_ids if any(token_ids) else []), False
    except RequestError as error:
        return Answer(NOTHING, Refusal.of(error)), False
    except RecursionError:
        return Answer(NOTHING, Refusal.of(too_deep())), False
    except MemoryError:
        refusal = Refusal("The request needs more memory than there is; send less at once.", None, 413, "too_large")
        return Answer(NOTHING, refusal), True
    except Exception:
        sentence = "The server failed on this request; its log says why."
        return Answer(NOTHING, Refusal(sentence, None, 500, None, traceback.format_exc())), True


def _taken_out(prompt: Prompt) -> memoryview:
    """Move the token ids of a long prompt out of it, and return them as bytes; return nothing for a short one."""
    ids = prompt.token_ids
    if len(ids) <= SHORT_PROMPT:
        return NOTHING
    try:
        packed = array("I", ids)  # five times as fast as signed ones
    except OverflowError:  # a check of the vocabulary refuses this prompt later
        return NOTHING
    prompt.token_ids = []
    return memoryview(packed.tobytes())


if __name__ == "__main__":
    sys.exit(run(serve, GROWN_BYTES))
