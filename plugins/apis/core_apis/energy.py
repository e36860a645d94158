"""The energy of answers whose requests ask for it.

Owns: asking the engine before and after such a request. Never does: measure (`core_observers.engine.energy` does, in
the engine). Called by: `core_apis.app`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from core.api.errors import CoreError
from core_apis.engine_protocol import ServingEngine
from core_apis.watching import Generate, PromptCall
from core_frontend.api.outputs import RequestOutput
from core_observers.energy_use import EnergyUse

logger = logging.getLogger("core_apis")


def with_energy(generate: Generate, engine: ServingEngine) -> Generate:
    """Wrap `generate` so that the last output of a request that wants to know has its energy."""

    async def run(call: PromptCall) -> AsyncGenerator[RequestOutput, None]:
        is_watched = call.terms.energy and await _call(engine, "watch_energy", call.request_id)
        try:
            async with aclosing(generate(call)) as outputs:
                async for output in outputs:
                    if is_watched and output.finished:
                        is_watched = False
                        output.energy = _use(await _call(engine, "take_energy", call.request_id))
                    yield output
        finally:
            if is_watched:
                await _call(engine, "take_energy", call.request_id)

    return run


async def _call(engine: ServingEngine, method: str, request_id: str) -> Any:
    """Call the engine; None while it cannot answer, as after its death: the answer then comes without its energy."""
    try:
        return await engine.control.call(method, request_id=request_id)
    except CoreError as error:
        logger.debug("The engine does not tell of energy: %s", error)
        return None


def _use(told: dict[str, int | None] | None) -> EnergyUse | None:
    """Return what the client is told: two digits, since more would tell of the requests in the same steps."""
    if told is None:
        return None
    joules = told["microjoules"]
    seconds = (told["processor_ns"] or 0) / 1e9
    return EnergyUse(float(f"{seconds:.2g}"), None if joules is None else float(f"{joules / 1e6:.2g}"))
