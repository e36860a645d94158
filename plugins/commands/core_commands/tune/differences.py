"""How the answers of two servers to the same prompts differ, with the parts of `core diff`.

Owns: the prompts that are compared, and the sentence. Never does: measure speed. Called by: the workbench, for values that
change bits.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Final

import msgspec

from core_commands.bench.datasets import prompts
from core_commands.bench.load import Shape
from core_commands.bench.serve import PATHS
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.served_names import served_name
from core_commands.replay.comparison import Comparison, Recorded
from core_commands.replay.servers import ask_all
from core_commands.tune.options import TuneOptions

NUM_COMPARED: Final = 16
LONGEST: Final = 64
"""Most tokens of an answer that is compared; the first ones say enough."""


async def difference_of(options: TuneOptions, left: str, right: str) -> str:
    """Return the difference of the answers at two urls as a sentence. Raises EndpointError."""
    records = await _answers(options, left)
    comparison = Comparison(left, right)
    await ask_all(right, None, records, comparison, is_ours=True)
    problems = [row.problem for row in comparison.rows if row.problem]
    if problems:
        raise EndpointError(problems[0])
    firsts = [min(found.index for _, _, found in row.tokens) for row in comparison.rows if row.tokens]
    if not firsts:
        return f"none of {comparison.num_requests} answers differs in a token"
    return (
        f"{len(firsts)} of {comparison.num_requests} answers differ, the first time at token {median(firsts):.0f} (median); "
        "core diff compares recorded traffic"
    )


async def _answers(options: TuneOptions, url: str) -> list[Recorded]:
    """Return some prompts of the dataset with a server's answers to them."""
    endpoint = HttpEndpoint(url)
    try:
        shape = Shape(PATHS[options.backend], {"model": await served_name(endpoint, None)}, {})
        wanted = prompts(msgspec.structs.replace(options, num_prompts=NUM_COMPARED))
        found: list[Recorded] = []
        for number, prompt in enumerate(wanted[:NUM_COMPARED]):
            body: dict[str, Any] = msgspec.json.decode(shape.body(prompt))
            del body["stream"], body["stream_options"]
            body |= {
                "max_tokens": min(prompt.max_tokens, LONGEST),
                "temperature": 0,
                "seed": number,
                "return_token_ids": True,
            }
            async with endpoint.ask("POST", shape.path, msgspec.json.encode(body)) as answer:
                data = await whole(answer)
            if answer.status != 200:
                raise EndpointError(f"The answer has status {answer.status}: {data[:200].decode(errors='replace')}")
            given = msgspec.json.decode(data, type=dict[str, Any])
            choices = [(row["index"], row["token_ids"], row["finish_reason"]) for row in given["choices"]]
            found.append(Recorded(number, shape.path, body, [[]], [choices], [number], answer=given))
        return found
    finally:
        await endpoint.close()
