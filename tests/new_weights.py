"""Checkpoints of one shape and other weights, and answers that show every bit."""

import functools
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core_frontend.llm import LLM

PROMPTS = ({"prompt_token_ids": [7, 100, 3, 55, 201, 9, 8, 77]}, {"prompt_token_ids": [5, 6]})
SETTINGS = {"max_model_len": 64, "num_gpu_blocks_override": 24, "max_num_seqs": 4, "use_tqdm_on_load": False}
PARAMS = SamplingParams(max_tokens=10, temperature=0.7, seed=3, logprobs=2, ignore_eos=True)

Answer = list[tuple[list[int], list[list[tuple[int, float]]]]]


def answers(llm: LLM, params: SamplingParams = PARAMS) -> Answer:
    """The tokens of all prompts, and all log-probabilities."""
    told: Answer = []
    for output in llm.generate(list(PROMPTS), params, use_tqdm=False):
        answer = output.outputs[0]
        logprobs = [[(token, each.logprob) for token, each in row.items()] for row in answer.logprobs or []]
        told.append((list(answer.token_ids), logprobs))
    return told


def answers_of(path: Path, **settings: Any) -> Answer:
    """Those of an engine that starts with a checkpoint and ends. Asked again, it is not started again."""
    return _answers_of(path, tuple(sorted(settings.items())))


@functools.cache
def _answers_of(path: Path, given: tuple[tuple[str, Any], ...]) -> Answer:
    settings = dict(given)
    with LLM(str(path), **{**SETTINGS, **settings}) as llm:
        return answers(llm)


def weights_of(path: Path) -> dict[str, Tensor]:
    return load_file(path / "model.safetensors")


def mixed(folder: Path, base: Path, other: Path, names: Iterable[str]) -> Path:
    """A checkpoint like `base`, with some tensors of `other`."""
    shutil.copytree(base, folder)
    tensors = weights_of(base)
    newer = weights_of(other)
    tensors.update({name: newer[name] for name in names})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
