"""Two checkpoints of the same numbers: one packed as a format says, one plain, dequantized by somebody else."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core_frontend.llm import LLM

Pack = Callable[[str, Tensor], tuple[Mapping[str, Tensor], Tensor] | None]
"""By module and matrix: its tensors by suffix, and the matrix that they stand for; None: it stays plain."""
PROMPTS = ([5, 9, 17, 33, 65, 129, 200], [7, 8, 11])


def write_twins(plain: Path, folder: Path, declaration: Mapping[str, Any], pack: Pack) -> tuple[Path, Path]:
    """The packed and the plain checkpoint, made of `plain` (which is left as it is)."""
    packed_folder = folder / "packed"
    plain_folder = folder / "plain"
    packed: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        module, _, suffix = name.rpartition(".")
        found = pack(module, tensor) if suffix == "weight" and tensor.dim() == 2 else None
        if found is None:
            packed[name] = tensor
            dense[name] = tensor
            continue
        tensors, matrix = found
        dense[name] = matrix.float().contiguous()
        for own, part in tensors.items():
            packed[f"{module}.{own}"] = part.contiguous()
    for target, state in ((packed_folder, packed), (plain_folder, dense)):
        target.mkdir(parents=True)
        save_file(state, target / "model.safetensors", metadata={"format": "pt"})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (target / name).write_bytes((plain / name).read_bytes())
    config = json.loads((plain / "config.json").read_text())
    (plain_folder / "config.json").write_text(json.dumps(config))
    (packed_folder / "config.json").write_text(json.dumps({**config, "quantization_config": declaration}))
    return packed_folder, plain_folder


def greedy(path: Path, **arguments: Any) -> list[tuple[list[int], list[float]]]:
    """Tokens and their logprobs of two prompts, in float32 throughout."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    with LLM(path, dtype="float32", max_model_len=128, num_gpu_blocks_override=64, **arguments) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    found = []
    for output in outputs:
        answer = output.outputs[0]
        chosen = [one[token].logprob for one, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        found.append((list(answer.token_ids), chosen))
    return found


def assert_same_numbers(packed: Path, plain: Path, tolerance: float = 1e-4) -> None:
    """Both checkpoints give the same tokens with the same logprobs."""
    for ours, theirs in zip(greedy(packed), greedy(plain), strict=True):
        assert ours[0] == theirs[0]
        difference = torch.tensor(ours[1]) - torch.tensor(theirs[1])
        assert difference.abs().max() < tolerance
