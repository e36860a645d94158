"""The loop of a worker: one engine in one process, told over its standard input what to run.

Owns: the protocol (a JSON object a line, both ways) and the clock. Never does: choose work, or import anything but the
standard library, because it runs in the environment of each engine. Called by: the `*_worker.py` scripts beside it.

A request is {"do": "generate", "prompts": [[ids]], "max_tokens": n}, {"do": "score", "prompts": [[ids]], "outputs": [[ids]]},
{"do": "embed", "texts": [...], "batch": n}, {"do": "drafts"}, or {"do": "end"}; "adapters" of the first has a name
for each prompt. The answer holds `seconds` of the call alone and what it returned, or `error`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Options = dict[str, Any]


def serve(create: Callable[[Options], Any]) -> None:
    """Build the engine from the JSON options in argv[1], warm it up, then answer until the input ends.

    create: options to an object with `version`, and any of `generate(prompts, max_tokens) -> [[ids]]`,
    `score(prompts, outputs) -> [mean log probability]`, `embed(texts, batch) -> vectors' width`,
    `drafts() -> [tokens drafted so far, of these accepted]`.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not look like an answer
    start = time.perf_counter()
    engine = create(json.loads(sys.argv[1]))
    imported = getattr(engine, "imported", start)
    reply(
        answers,
        {
            "version": engine.version,
            "import_seconds": imported - start,
            "load_seconds": time.perf_counter() - imported,
        },
    )
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "end":
            break
        reply(answers, answer(engine, request))
    close = getattr(engine, "close", None)
    if close is not None:
        close()


def answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Run one request; an exception becomes its answer, so that one scenario's failure does not end the others."""
    name = request.pop("do")
    method = getattr(engine, name, None)
    if method is None:
        return {"error": f"{name} is not served by this engine yet"}
    start = time.perf_counter()
    try:
        result = method(**request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"seconds": time.perf_counter() - start, "result": result}


def reply(stream: Any, message: dict[str, Any]) -> None:
    """One line, at once."""
    stream.write(json.dumps(message) + "\n")
    stream.flush()
