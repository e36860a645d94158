"""The compiler in the background: forms of calls in, compiled operations out.

Owns: its thread, and whether a compiled operation may take the reference's place. Never does: wait for anybody, or compile in
another thread than its own. Called by: the kernels.

A compiled operation is tried on numbers of several sizes, and comes out only if it gives the reference's bits each time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor

from core_kernels.inductor.forms import BY_ROWS, Form, trial
from core_runtime.layers.reference import ReferenceKernels

logger = logging.getLogger(__name__)

Operation = Callable[..., None]
Compile = Callable[[Operation, Form, torch.device], Operation]
ROWS: Final = (1, 2, 5, 64)
"""Of the trials: one row is compiled by itself, any more are compiled once."""
MOST_FORMS: Final = 64
"""Compiled in one process: a model has a few, and whoever makes more is not worth it."""


class Compiler:
    """Compiles forms one after the other. Its thread starts with the first one, and ends with the process.

    device: as torch names it.
    compile: gives the compiled form of a function, which the steps' thread may call for rows that were tried.
    cache_dir: where torch keeps what it has compiled; empty: its own place.

    ready: compiled operations that nobody has taken yet.
    """

    def __init__(self, device: str, compile: Compile | None = None, cache_dir: str = "") -> None:
        self.ready: deque[tuple[Form, Operation]] = deque()
        self._device = torch.device(device)
        self._compile = torch_compiled if compile is None else compile
        self._cache_dir = cache_dir
        self._asked: SimpleQueue[Form] = SimpleQueue()
        self._num_asked = 0
        self._failed: set[str] = set()
        self._thread: threading.Thread | None = None

    def ask(self, form: Form) -> None:
        """Have a form compiled."""
        self._num_asked += 1
        if self._num_asked > MOST_FORMS:
            return
        self._asked.put(form)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inductor", daemon=True)
            self._thread.start()

    def prepare(self, form: Form) -> None:
        """Compile a form here and now."""
        operation = form.operation
        if operation in self._failed:
            return
        try:
            compiled = self._compile(separate(getattr(ReferenceKernels(), operation)), form, self._device)
            same = has_equal_bits(form, compiled, self._device)
        except Exception as error:  # a compiler that is missing or fails: the reference goes on
            self._failed.add(operation)
            lines = str(error).splitlines() or ["no word"]
            logger.warning("torch cannot compile %s (%s); it is computed as before.", operation, lines[0])
            return
        if same:
            self.ready.append((form, compiled))
        else:
            logger.info("%s as torch compiles it has other bits, and is not used.", operation)

    def _run(self) -> None:
        if self._cache_dir:
            # torch knows no other way to be told
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = self._cache_dir
        while True:
            self.prepare(self._asked.get())


def separate(operation: Operation) -> Operation:
    """The same function with code of its own: torch keeps what it compiles with the code, and few variants of each."""
    function = getattr(operation, "__func__", operation)
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    if function is operation:
        return copy
    bound: Operation = copy.__get__(operation.__self__)  # type: ignore[attr-defined]
    return bound


def torch_compiled(operation: Operation, form: Form, device: torch.device) -> Operation:
    """Compiled by torch for one row and for more, and never again: calls that are neither run as they are.

    Raises what torch raises.
    """
    from torch._inductor import config

    random = torch.Generator().manual_seed(0)
    # a pool of processes, each with a torch of its own, would take longer to start than these few kernels to compile
    with torch.inference_mode(), config.patch(compile_threads=1):
        for rows in (2, 1):
            arguments = trial(form, rows, device, random)
            if rows > 1:
                for index in BY_ROWS[form.operation]:
                    torch._dynamo.mark_dynamic(arguments[index], 0)
            torch.compile(operation, fullgraph=True)(*arguments)
    run: Operation = torch._dynamo.run(operation)
    return run


def has_equal_bits(form: Form, compiled: Operation, device: torch.device) -> bool:
    """Whether two forms of an operation leave the same bits behind in all their arguments."""
    reference = getattr(ReferenceKernels(), form.operation)
    random = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for rows in ROWS:
            arguments = trial(form, rows, device, random)
            expected = [_copy(argument) for argument in arguments]
            reference(*expected)
            compiled(*arguments)
            for got, wanted in zip(arguments, expected, strict=True):
                if isinstance(got, Tensor) and not torch.equal(got, wanted):
                    return False
    return True


def _copy(argument: Any) -> Any:
    """With the same strides, which memory between rows may make larger than a copy's own."""
    if not isinstance(argument, Tensor):
        return argument
    copy = torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device)
    return copy.copy_(argument)
