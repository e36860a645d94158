"""The background compiler: it takes forms of calls and returns compiled operations.

Owns: its thread, and the decision whether a compiled operation may replace the reference. Never does: block a caller,
or compile outside its own thread. Called by: the kernels.

A compiled operation is tested on inputs of several sizes, and is released only if it reproduces the reference's bits
each time.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
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
"""Row counts of the trials: one row is compiled separately, all larger counts once."""
MOST_FORMS: Final = 64
"""Limit on the forms compiled in one process: a model has a few, and a caller that makes more would not profit."""


class Compiler:
    """Compiles forms one after another in a background thread, which starts with the first form and ends with the
    process.

    device: as torch names it.
    compile: returns the compiled form of a function, which the step thread may call for row counts that were tried.
    cache_dir: torch's cache of compiled code; empty: torch's default.
    debug_dir: directory for what torch makes of each operation; empty: it is not kept.

    ready: compiled operations that have not been picked up yet.
    """

    def __init__(self, device: str, compile: Compile | None = None, cache_dir: str = "", debug_dir: str = "") -> None:
        self.ready: deque[tuple[Form, Operation]] = deque()
        self._device = torch.device(device)
        self._compile = partial(torch_compiled, debug_dir=debug_dir) if compile is None else compile
        self._cache_dir = cache_dir
        self._asked: SimpleQueue[Form] = SimpleQueue()
        self._num_asked = 0
        self._failed: set[str] = set()
        self._thread: threading.Thread | None = None

    def ask(self, form: Form) -> None:
        """Queue a form for compilation."""
        self._num_asked += 1
        if self._num_asked > MOST_FORMS:
            return
        self._asked.put(form)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="inductor", daemon=True)
            self._thread.start()

    def prepare(self, form: Form) -> None:
        """Compile a form synchronously."""
        operation = form.operation
        if operation in self._failed:
            return
        try:
            compiled = self._compile(separate(getattr(ReferenceKernels(), operation)), form, self._device)
            same = has_equal_bits(form, compiled, self._device)
        except Exception as error:  # a missing or failing compiler: the reference stays in use
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
            # torch offers no other way to set this
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = self._cache_dir
        while True:
            self.prepare(self._asked.get())


def separate(operation: Operation) -> Operation:
    """Return a copy of the function with its own code object: torch stores compiled variants with the code, and only a
    few for each.
    """
    function = getattr(operation, "__func__", operation)
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    if function is operation:
        return copy
    bound: Operation = copy.__get__(operation.__self__)  # type: ignore[attr-defined]
    return bound


def torch_compiled(operation: Operation, form: Form, device: torch.device, debug_dir: str = "") -> Operation:
    """Compile with torch for one row and for more, and never again: other calls run uncompiled.

    debug_dir: see `Compiler`.
    Raises any exception of torch.
    """
    from torch._inductor import config

    random = torch.Generator().manual_seed(0)
    # a pool of processes, each with its own torch, would take longer to start than these few kernels to compile
    changes: dict[str, Any] = {"compile_threads": 1}
    if debug_dir:
        # Code that comes from torch's cache is not written again.
        changes |= {"trace.enabled": True, "trace.debug_dir": debug_dir, "force_disable_caches": True}
    with torch.inference_mode(), config.patch(changes):
        for rows in (2, 1):
            arguments = trial(form, rows, device, random)
            if rows > 1:
                for index in BY_ROWS[form.operation]:
                    torch._dynamo.mark_dynamic(arguments[index], 0)
            torch.compile(operation, fullgraph=True)(*arguments)
    run: Operation = torch._dynamo.run(operation)
    return run


def has_equal_bits(form: Form, compiled: Operation, device: torch.device) -> bool:
    """Whether both forms of an operation leave the same bits in all their arguments."""
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
    """Copy a tensor with its strides, which gaps between rows may make larger than a plain copy's."""
    if not isinstance(argument, Tensor):
        return argument
    copy = torch.empty_strided(argument.shape, argument.stride(), dtype=argument.dtype, device=argument.device)
    return copy.copy_(argument)
