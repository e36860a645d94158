"""Work in a process of its own, with limits of time and memory.

Owns: the child and its end. Called by: `tests.grammars.prove`, the test of malicious input.
"""

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def in_child(work: Callable[[], Any], seconds: float, megabytes: int) -> tuple[str, Any]:
    """Run `work` in a forked child: ("done", its value), ("failed", the error as text), ("late", None) or ("died", None).

    megabytes: memory of its own, beside what it shares with this process.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_run, args=(work, theirs, megabytes), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return "late", None
        return ours.recv()  # type: ignore[no-any-return]
    except EOFError:
        return "died", None
    finally:
        ours.close()
        child.kill()
        child.join()


def _run(work: Callable[[], Any], answer: Connection, megabytes: int) -> None:
    used = _address_space()
    limit = used + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        answer.send(("done", work()))
    except Exception as error:  # the child's only way to say so
        answer.send(("failed", f"{type(error).__name__}: {error}"))


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[0])
    return pages * resource.getpagesize()
