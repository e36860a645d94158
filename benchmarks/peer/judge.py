"""Whether what an engine wrote makes sense: its mean log probability under a reference in float32.

Owns: the verdicts. Never does: generate. Called by: the session, after each offline scenario.
"""

from __future__ import annotations

from typing import Any

from benchmarks.peer.process import Worker

JUDGED_TOKENS = 64
SENSE_LOGPROB = -2.5
"""A greedy continuation lies near -0.5, one of another prompt below -5."""
LIMIT_S = 300.0


class Judge:
    """worker: transformers with the bf16 weights, in float32."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def verdicts(self, outputs: dict[str, list[list[int]]], ours: str) -> dict[str, dict[str, Any]]:
        """outputs: contender to [prompt, output]. Log probability, sense, and how many first tokens equal ours, for each."""
        request = {
            "do": "score",
            "prompts": [prompt for prompt, _ in outputs.values()],
            "outputs": [output[:JUDGED_TOKENS] for _, output in outputs.values()],
        }
        scores = self._worker.ask(request, LIMIT_S)["result"] if outputs else []
        reference = outputs.get(ours, [[], []])[1]
        return {
            name: {
                "mean logprob": score,
                "sense": score >= SENSE_LOGPROB,
                "tokens": len(output),
                "equal first tokens": equal_tokens(output, reference),
            }
            for (name, (_, output)), score in zip(outputs.items(), scores, strict=True)
        }


def equal_tokens(a: list[int], b: list[int]) -> int:
    """How many tokens agree before the first difference."""
    pairs = zip(a, b, strict=False)
    return next((index for index, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
