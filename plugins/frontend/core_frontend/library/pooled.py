"""The answer to a pooled text, for scripts.

Owns: the error of a text that could not be pooled, and the form of its numbers. Never does: call the engine. Called by:
`LLM` and `AsyncLLM`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api.errors import RequestError
from core_frontend.api.pooling_outputs import PooledOutput, PoolingOutput, PoolingRequestOutput, WholeOutput
from core_frontend.prompts.late_chunks import Span, late_chunks
from core_tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor


def whole_answer(output: PooledOutput, tokenizer: Tokenizer | None) -> WholeOutput:
    """Return the answer. Raises RequestError if the text could not be pooled.

    tokenizer: gives the positions of the parts of a text that was pooled in parts; None: there is none.
    """
    end = output.outputs[0]
    if end.finish_reason != "stop":
        raise RequestError(f"A text could not be pooled: {end.stop_reason or end.finish_reason}", status=500)
    whole = output.whole()
    if output.chunk:
        spans = _spans(output, tokenizer)
        whole.late_chunking = late_chunks(len(whole.prompt_token_ids), output.chunk, spans)
    return whole


def as_tensor(whole: WholeOutput) -> PoolingRequestOutput[PoolingOutput[Tensor]]:
    """Return the answer with torch tensors, as vLLM does."""
    import torch  # the engine has loaded it

    data = torch.from_numpy(whole.outputs.data.copy())
    return PoolingRequestOutput(
        whole.request_id,
        PoolingOutput(data),
        whole.prompt_token_ids,
        whole.num_cached_tokens,
        late_chunking=whole.late_chunking,
    )


def _spans(output: PooledOutput, tokenizer: Tokenizer | None) -> list[Span] | None:
    """Return the characters of each token of a text; None: they are not known."""
    text = output.prompt
    if text is None or tokenizer is None or tokenizer.refusal:
        return None
    if tokenizer.encode(text) != output.prompt_token_ids:
        return None
    return tokenizer.spans(text)
