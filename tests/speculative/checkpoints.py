"""Tiny drafts of every kind for tiny targets, as real checkpoints in the layouts in which they are published."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from tests.speculative.oracles import Drafter, Eagle, Eagle3
from tests.speculative.test_draft_heads import Speculator, medusa_state
from tests.tiny_models import SHAPE, save_checkpoint

LAYER_IDS = [1, 2, 3]
DRAFT = LlamaConfig(**{**SHAPE, "num_hidden_layers": 1}, draft_vocab_size=150)
SIZE = 64
VOCAB = 260
MASK = 7


def save(folder: Path, config: dict[str, Any], state: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    return folder


def state_of(oracle: Drafter) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in oracle.state_dict().items() if not name.startswith("rotary")}


def save_eagle(folder: Path, target: Any) -> tuple[Path, Drafter]:
    """target: a model of transformers."""
    torch.manual_seed(1)
    embedding = target.model.embed_tokens.weight.detach()
    oracle = Eagle(DRAFT, embedding, target.lm_head.weight.detach(), bias=True).eval()
    config = {**DRAFT.to_dict(), "architectures": ["LlamaForCausalLM"]}
    return save(folder, config, state_of(oracle)), oracle


def save_eagle3(folder: Path, target: Any) -> tuple[Path, Drafter]:
    """target: a model of transformers."""
    torch.manual_seed(2)
    oracle = Eagle3(DRAFT, target.model.embed_tokens.weight.detach(), 3, norms_stream=False).eval()
    state = {**state_of(oracle), "d2t": oracle.d2t, "t2d": torch.zeros(VOCAB, dtype=torch.bool)}
    config = {
        **DRAFT.to_dict(),
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": LAYER_IDS},
    }
    return save(folder, config, state), oracle


def save_speculators(folder: Path, target: Any, verifier: Path) -> Path:
    """An EAGLE-3 in the speculators format, which names its target. target: a model of transformers."""
    torch.manual_seed(2)
    oracle = Eagle3(DRAFT, target.model.embed_tokens.weight.detach(), 3, norms_stream=False).eval()
    state = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in state_of(oracle).items()}
    state |= {"d2t": oracle.d2t, "t2d": torch.zeros(VOCAB, dtype=torch.bool)}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": DRAFT.draft_vocab_size,
        "norm_before_residual": False,
        "transformer_layer_config": {key: value for key, value in DRAFT.to_dict().items() if key != "draft_vocab_size"},
        "eagle_aux_hidden_state_layer_ids": LAYER_IDS,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": str(verifier), "architectures": ["LlamaForCausalLM"]},
        },
    }
    return save(folder, config, state)


def save_mtp(folder: Path) -> Path:
    """A DeepSeek-V3 whose fourth layer drafts."""
    save_checkpoint(folder, "deepseek_v3", num_hidden_layers=4)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    state = load_file(folder / "model.safetensors")
    size = config["hidden_size"]
    torch.manual_seed(3)
    prefix = "model.layers.3"
    for name in ("enorm", "hnorm", "shared_head.norm"):
        state[f"{prefix}.{name}.weight"] = 1 + 0.1 * torch.randn(size)
    state[f"{prefix}.eh_proj.weight"] = torch.randn(size, 2 * size) / 8
    return save(folder, config, state)


def save_medusa(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """As the authors publish it, whose configuration names no model type."""
    torch.manual_seed(1)
    state = medusa_state(3, 1, "", SIZE, VOCAB)
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    return save(folder, config, state), state


def save_speculator(folder: Path) -> tuple[Path, Speculator]:
    torch.manual_seed(2)
    oracle = Speculator(3, 32, tied=False, size=SIZE, vocab=VOCAB)
    config = {
        "model_type": "mlp_speculator",
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "vocab_size": VOCAB,
        "emb_dim": SIZE,
        "inner_dim": 32,
        "n_predict": 3,
    }
    state = {f"speculator.{name}": tensor for name, tensor in oracle.state_dict().items()}
    return save(folder, config, state), oracle


def save_parallel(folder: Path) -> Path:
    return save_checkpoint(folder, seed=3, num_hidden_layers=1, pard_token=MASK)
