"""The parent's side of the helper process that compiles grammars.

Owns: the messages to it, and what a request is told when the process ends at its grammar. Never does: start or end the
process (`core_supervision.helpers` does), compile (`core_grammars.compile_process` is the other end), or cache. Called by:
`core_grammars.compiler`, from a thread.

Compilation runs third-party code on untrusted input, so it gets its own process: a hang, a crash or exhausted memory
ends with it.
"""

from __future__ import annotations

import logging

import msgspec

from core.api.errors import RequestError
from core.api.structured_outputs import FIELD, CompiledGrammar
from core_grammars.compile_process import Answer, Job, Start
from core_supervision.helpers.blocking import BlockingHelper
from core_supervision.helpers.helper import Helper
from core_supervision.helpers.lane import Lane
from core_supervision.helpers.link import HelperEnded
from core_supervision.helpers.messages import Refusal

logger = logging.getLogger("core.grammars")

START_SECONDS = 60.0
"""Time limit for starting the process and loading a backend, on a busy machine."""
IDLE_SECONDS = 600.0
"""Idle seconds after which the process is ended; its memory is worth more than a quick next start."""


class CompileHelper:
    """A compile helper with at most one process. Used by one thread at a time, except `close`.

    start: its first message.
    timeout: seconds that all backends together may take for one grammar; loading them does not count.
    stays: whether the process keeps running without a job.
    """

    def __init__(self, start: Start, timeout: float, *, stays: bool = False) -> None:
        self._timeout = timeout
        self._memory = start.compile_memory
        lane = Lane(
            "core_grammars.compile_process",
            "compiles grammars",
            timeout,
            load_seconds=START_SECONDS,
            idle_seconds=None if stays else IDLE_SECONDS,
            niceness=5,
            max_attempts=2,  # the first process may have died while it was idle
            max_ended=1,
        )
        self._helper = BlockingHelper(Helper(lane, lambda: msgspec.msgpack.encode(start)))

    def compiled(self, job: Job) -> CompiledGrammar | Refusal:
        """Compile one grammar, or return the backends' objections; blocks the calling thread meanwhile.

        Raises RequestError for a grammar that takes too long or kills the process, and when no process can be started.
        """
        try:
            content = self._helper.ask(msgspec.msgpack.encode(job))
        except HelperEnded as ending:
            raise self._refusal(ending) from None
        answer = msgspec.msgpack.decode(content, type=Answer)
        if answer.compiled is not None:
            return answer.compiled
        assert answer.refusal is not None
        if answer.refusal.details:
            logger.error("A grammar backend failed.\n%s", answer.refusal.details)
        return answer.refusal

    def close(self) -> None:
        """Terminate the process for good, even in the middle of a grammar."""
        self._helper.close()

    def _refusal(self, ending: HelperEnded) -> RequestError:
        if not ending.began:
            return RequestError(
                "The process that compiles grammars does not start; try again, or ask without structured outputs.",
                param=FIELD,
                status=503,
                code="server_busy",
                retry_after=1,
            )
        if ending.timed_out:
            problem = f"did not compile within {self._timeout:g} s (--structured-outputs-config.compile-timeout)"
        else:
            problem = (
                f"ended the process that compiles it ({ending}): it takes more than {self._memory} bytes of memory "
                "(--structured-outputs-config.compile-memory), or is nested too deeply"
            )
        return RequestError(f"{FIELD} {problem}; simplify it.", param=FIELD, code="too_much_work")
