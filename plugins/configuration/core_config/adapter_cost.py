"""What ranks exchange for adapters, on paper. Torch-free.

Owns: the number of further sums in a step with adapters, and their bytes. Never does: communicate, or read an adapter.
Called by: `layout_cost`.
"""

from __future__ import annotations

from core.api.adapters import AdaptersConfig
from core_config.stages.memory import human_bytes
from core_runtime.specs.decoder_spec import DecoderSpec

SUM_BYTES = 4


def adapter_sums(spec: DecoderSpec, part: DecoderSpec, rank: int) -> tuple[int, int]:
    """Return the sums over ranks that a step with adapters has besides those of the base, and their bytes for each token.

    Each layer whose inputs ranks divide has one, of as many numbers as the largest rank of an adapter.
    part: what one of the ranks holds of the model.
    """
    divided = [
        len(parts)
        for index in range(len(spec.blocks))
        for role, parts in spec.block_linears(index).items()
        if part.block_linears(index)[role][0].shape[-1] < parts[0].shape[-1]
    ]
    return len(divided), SUM_BYTES * rank * sum(divided)


def adapter_notes(spec: DecoderSpec, part: DecoderSpec, adapters: AdaptersConfig | None) -> list[str]:
    """Return the sentence for `core config explain`; none where ranks add nothing up, or without adapters."""
    count, nbytes = (0, 0) if adapters is None else adapter_sums(spec, part, adapters.max_lora_rank)
    return [f"adapters: steps with some add {count} sums, of {human_bytes(nbytes)} a token together"] if count else []
