"""Checkpoints of models with heads that draft, of the families whose layouts are their own, for the engine.

Owns: their sizes and what is written. Never does: start an engine. Called by: the tests of such heads beside everything else
that an engine does.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from core_kit.checkpoints import write_tokenizer
from tests.speculative.eagle_layouts import LAYOUTS, made_eagle
from tests.speculative.matrix import Proposer
from tests.speculative.mtp_cases import made
from tests.speculative.mtp_published import OTHERS
from tests.speculative.oracles import NextToken

SIZES: dict[str, Any] = {"vocab_size": 264, "max_position_embeddings": 512, "eos_token_id": 2, "pad_token_id": 0}
"""Of a tokenizer of bytes."""
LATENT_SIZES = {"qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 32}
OWN_SIZES: dict[str, dict[str, Any]] = {
    "pangu_ultra_moe": LATENT_SIZES,
    "longcat_flash": LATENT_SIZES,
    "eagle of deepseek": {},
    "eagle of mistral_large_3": {},
    "eagle of minicpm": {"num_attention_heads": 2, "num_key_value_heads": 1, "attention_multiplier": 0.25},
    "mimo_v2_flash": {"head_dim": 24, "v_head_dim": 16},
}
"""Heads that the processor's own kernels take, whose bits depend on nothing else; those of all others have 16 numbers."""
MTP = ("mellum", "hy_v3", "mimo_v2_flash", *OTHERS)
EAGLE = tuple(f"eagle of {name}" for name in LAYOUTS)
HEADS = (*MTP, *EAGLE)

FEW_BLOCKS = {"mellum": 26, "mimo_v2_flash": 26, "eagle of llama4": 26, "step3p5": 42}
"""See `Proposer.few`: windows have blocks of their own."""

Drafts = Callable[[list[int], int], list[int]]


def _write(path: Path, config: dict[str, Any], state: dict[str, Tensor]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**config, **SIZES}))
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    write_tokenizer(path)
    return path


def drafting_model(name: str, folder: Path) -> tuple[Proposer, Drafts]:
    """Write a model and its head. Returns how the engine is told of them, and what plain torch drafts behind tokens."""
    keys = (("num_speculative_tokens", 3),)
    sizes = {**SIZES, **OWN_SIZES.get(name, {"head_dim": 16})}
    few = FEW_BLOCKS.get(name, 18)
    if name in MTP:
        model = OTHERS[name](folder, **sizes) if name in OTHERS else made(name, folder, **sizes)
        path = _write(folder / "model", model.config, model.state)
        return Proposer(name, "mtp", path, keys=keys, few=few), _drafts(model.target, model.oracle, 1.0)
    of = name.removeprefix("eagle of ")
    pair = made_eagle(of, folder, **sizes)
    path = _write(folder / "model", pair.config, pair.state)
    head = _write(folder / "head", pair.draft_config, pair.draft_state)
    return Proposer(name, "eagle", path, head, keys, few), _drafts(pair.target, pair.oracle, pair.width)


def _drafts(target: Any, oracle: NextToken, width: float) -> Drafts:
    def found(tokens: list[int], count: int) -> list[int]:
        with torch.no_grad():
            out = target(torch.tensor([tokens[:-1]]), output_hidden_states=True)
            drafts, _ = oracle.drafts(tokens, out.hidden_states[-1][0] / width, count)
        return drafts

    return found
