"""What a draft takes from the model that it drafts for: shape, embedding, head, and where to begin.

Owns: reading the model with transformers. Never does: run it. Called by: `train_draft.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from rich.progress import track
from torch import Tensor
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from draft_training.draft import Draft, DraftShape
from draft_training.lessons import Lesson

FEWEST_LAYERS: Final = 4
FITTED: Final = 150
"""Lessons from which the first guess comes."""
RIDGE: Final = 1e-6
GENTLE: Final = 0.2
"""Of what attention and MLP say at first."""


def load_target(model: str) -> PreTrainedModel:
    """A directory, a name, or a GGUF file (pip install gguf), in float32."""
    path = Path(model)
    if path.suffix != ".gguf":
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )


def tapped_layers(target: PreTrainedModel) -> tuple[int, int, int]:
    """Numbers of the layers whose input the draft sees, as published drafts have them unless they say otherwise."""
    count = target.config.num_hidden_layers
    if count < FEWEST_LAYERS:
        raise SystemExit(
            f"--model has {count} layers; expected {FEWEST_LAYERS} or more, of which a draft can read three."
        )
    return 2, count // 2, count - 3


def draft_for(target: PreTrainedModel, lessons: Sequence[Lesson], kept: Tensor, intermediate: int) -> Draft:
    """A draft that begins with what a matrix alone can tell of the target's next thought, and with the target's head.

    kept: ids of the tokens that its head knows.
    """
    config = target.config
    shape = DraftShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=intermediate,
        tokens=len(kept),
        target_tokens=config.vocab_size,
        eps=config.rms_norm_eps,
        theta=config.rope_parameters["rope_theta"],
    )
    draft = Draft(shape, kept)
    norm = target.base_model.norm.weight.detach()
    with torch.no_grad():
        # the norm's weights, which may be large, go into the head: what is trained then is of one size
        draft.lm_head.weight.copy_(target.get_output_embeddings().weight[kept] * norm)
        draft.fc.weight.copy_(next_thought(lessons, norm))
        draft.midlayer.self_attn.o_proj.weight.mul_(GENTLE)
        draft.midlayer.mlp.down_proj.weight.mul_(GENTLE)
    return draft


def next_thought(lessons: Sequence[Lesson], norm: Tensor) -> Tensor:
    """The matrix [H, 3H] that makes of the taps at each token the best guess at what enters the head one token later.

    norm: weight of the norm in front of the head, [H]; the guess is at what comes out of it without that.
    """
    size = lessons[0].taps.shape[1]
    squares = torch.zeros(size, size, dtype=torch.float64)
    products = torch.zeros(size, len(norm), dtype=torch.float64)
    for lesson in track(lessons[:FITTED], "first guess"):
        taps = lesson.taps[:-1].double()
        later = lesson.last[1:].double() / norm
        squares += taps.T @ taps
        products += taps.T @ later
    ridge = RIDGE * squares.diagonal().mean()
    squares.diagonal().add_(ridge)
    return torch.linalg.solve(squares, products).T.float()
