"""The answer to a text that was pooled, as scripts get it.

Owns: what is wrong with one that could not be pooled, and the form of its numbers. Never does: ask the engine.
Called by: `LLM` and `AsyncLLM`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.api.errors import RequestError
from core.api.pooling_outputs import PooledOutput, PoolingOutput, PoolingRequestOutput, WholeOutput
from core.engine.late_chunks import Span, late_chunks

if TYPE_CHECKING:
    from torch import Tensor


def whole_answer(output: PooledOutput, spans: Sequence[Span] | None = None) -> WholeOutput:
    """The answer. Raises RequestError when the text could not be pooled.

    spans: of the text's tokens, where it was pooled in parts.
    """
    end = output.outputs[0]
    if end.finish_reason != "stop":
        raise RequestError(f"A text could not be pooled: {end.stop_reason or end.finish_reason}", status=500)
    whole = output.whole()
    if output.chunk:
        whole.late_chunking = late_chunks(len(whole.prompt_token_ids), output.chunk, spans)
    return whole


def as_tensor(whole: WholeOutput) -> PoolingRequestOutput[Tensor]:
    """The same with numbers of torch, as vLLM gives them."""
    import torch  # the engine has loaded it

    data = torch.from_numpy(whole.outputs.data.copy())
    return PoolingRequestOutput(
        whole.request_id,
        PoolingOutput(data),
        whole.prompt_token_ids,
        whole.num_cached_tokens,
        late_chunking=whole.late_chunking,
    )
