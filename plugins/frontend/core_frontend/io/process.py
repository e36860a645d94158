"""The helper process of an IO processor (`core_supervision.helpers`).

Owns: the messages between it and its parent, and the checks of what the plugin returns. Never does: pool. Called by:
`core_frontend.io.pool`, as a child.

It is a process because the plugin holds the interpreter's lock, and because only a process that hangs can be ended.
"""

from __future__ import annotations

import resource
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from core.api.config import ResolvedPlugin
from core.api.errors import UNREADABLE, CoreError, RequestError
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core_frontend.io.contract import PARAMS, IOProcessor, Output, Prompts
from core_supervision.helpers.child import Parent, address_space, run
from core_supervision.helpers.messages import Refusal

KIND = "io_processor"
GROWN_BYTES = 512 << 20
"""Growth in bytes since the start after which the process is replaced by a new one."""
ROOM_BYTES = 4 << 30
"""Address space that the work on one request may take."""
MAX_ANSWER_BYTES = 64 << 20
"""Maximum size of the prompts or of the answer of one request, as JSON."""
DATA = "data"


class IOSettings(msgspec.Struct, frozen=True):
    """What the process loads: the plugin with its own arguments, and the options of `core_load`."""

    row: ResolvedPlugin
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {}


class OutputMessage(msgspec.Struct, array_like=True):
    """An `Output` as a message. numbers: float32 in the machine's byte order."""

    shape: tuple[int, ...]
    numbers: bytes
    token_ids: list[int]


class Job(msgspec.Struct, array_like=True):
    """One step of a request.

    step:    `body` turns the JSON of a /pooling request into one with prompts; `data` returns the prompts of data, as
             JSON `{"input": ..., params}`; `answer` returns the answer as JSON.
    content: JSON: the body, or the data.
    """

    step: Literal["body", "data", "answer"]
    content: bytes
    outputs: list[OutputMessage] = []


class Answer(msgspec.Struct, array_like=True):
    """The outcome of a job. content: JSON; empty for a body without data, which is left as it is."""

    content: bytes = b""
    refusal: Refusal | None = None


class WrongAnswer(Exception):
    """The plugin returned what its contract does not allow."""


class Steps:
    """The steps of requests with one plugin."""

    def __init__(self, processor: IOProcessor) -> None:
        self._processor = processor

    def run(self, job: Job) -> bytes:
        """Return the outcome of a job. Raises RequestError, WrongAnswer and whatever the plugin raises."""
        if job.step == "body":
            return self._body(job.content)
        data = self._processor.parse_request(_decoded(job.content))
        if job.step == "data":
            return checked(self._prompts(data, {}), "pre_process")
        outputs = [
            Output(np.frombuffer(each.numbers, np.float32).reshape(each.shape), each.token_ids) for each in job.outputs
        ]
        return checked(self._processor.post_process(data, outputs), "post_process")

    def _body(self, content: bytes) -> bytes:
        body = _decoded(content)
        if not isinstance(body, dict) or DATA not in body:
            return b""  # texts, which need no plugin, or a mistake that is told later
        if body.get("input") is not None:
            raise RequestError("input and data exclude each other; leave one out.", param=DATA)
        data = self._processor.parse_request(body[DATA])
        written = checked(body[DATA], "the request").decode()  # as text: its numbers may be of any size
        return checked({**body, **self._prompts(data, body), DATA: written}, "pre_process")

    def _prompts(self, data: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        made = self._processor.pre_process(data)
        if not isinstance(made, tuple) or len(made) != 2:
            raise WrongAnswer(f"pre_process returned a {type(made).__name__}, expected Prompts")
        prompts, params = Prompts(*made)
        unknown = sorted(set(params) - set(PARAMS))
        if unknown:
            raise WrongAnswer(f"pre_process set {unknown}, expected some of {', '.join(PARAMS)}")
        found = [prompt if isinstance(prompt, str) else list(map(int, prompt)) for prompt in prompts]
        if not found or not all(found):
            raise WrongAnswer(f"pre_process returned {len(found)} prompts, expected at least one, and none empty")
        return {"input": found, **{name: value for name, value in params.items() if given.get(name) is None}}


def checked(made: Any, what: str) -> bytes:
    """Return plain values as JSON. Raises WrongAnswer for other values, or too many."""
    try:
        content = msgspec.json.encode(made, enc_hook=_refused)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongAnswer(f"{what} returned what is no plain JSON value ({error})") from error
    if len(content) > MAX_ANSWER_BYTES:
        raise WrongAnswer(f"{what} returned {len(content)} bytes, expected at most {MAX_ANSWER_BYTES}")
    return content


def _refused(value: Any) -> Any:
    raise TypeError(f"a {type(value).__name__}")


def _decoded(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except UNREADABLE as error:
        raise RequestError(f"The body is not valid JSON ({error}).") from error


def load_processor(settings: IOSettings) -> IOProcessor:
    """Load the plugin. Raises PluginError and UserError."""
    context = LoadContext(arguments=settings.arguments, options=dict(settings.options))
    processor: IOProcessor = PluginTable([settings.row]).load(KIND, settings.row.name, context)
    return processor


def serve(parent: Parent) -> None:
    """Serve jobs until the parent hangs up, or this process has grown."""
    settings = parent.first(IOSettings)
    try:
        steps = Steps(load_processor(settings))
    except CoreError as error:
        failure = Answer(refusal=Refusal(str(error), None, 500, None))
        parent.serve(lambda payload: (failure, False))
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + ROOM_BYTES, hard))
    parent.settle()
    name = settings.row.name

    def work(payload: memoryview) -> tuple[Answer, bool]:
        return _answer(steps, name, msgspec.msgpack.decode(payload, type=Job))

    parent.serve(work)


def _answer(steps: Steps, name: str, job: Job) -> tuple[Answer, bool]:
    """Return the answer to a job, and whether it leaves the process unfit for others."""
    try:
        return Answer(steps.run(job)), False
    except RequestError as error:
        return Answer(refusal=Refusal.of(error)), False
    except MemoryError:
        sentence = f"The IO processor '{name}' needs more memory for this request than one may take; send less."
        return Answer(refusal=Refusal(sentence, DATA, 413, "too_large")), True
    except (Exception, SystemExit):  # a plugin may call sys.exit, which must not look like a failed start
        sentence = f"The IO processor '{name}' failed on this request; the server's log says why."
        return Answer(refusal=Refusal(sentence, DATA, 500, None, traceback.format_exc())), True


if __name__ == "__main__":
    sys.exit(run(serve, GROWN_BYTES))
