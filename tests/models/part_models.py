"""Tiny models to divide among ranks: their checkpoints, weights in packed forms, and ranks that sum in a tree."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import PretrainedConfig

from core.api.specs import LayerSpec, PartPlan
from core_attention.cpu_paged.backend import CpuPagedAttention
from core_attention.torch_sdpa.backend import TorchSDPA
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.layers.rows import RowKernels
from core_runtime.models.families import decoder_spec
from core_runtime.specs.expert_placement import ExpertPlacement
from core_runtime.specs.model_part import Part
from core_runtime.weights.formats import CanonicalWeight, IntGroups, SuperGroups
from tests.models.harness import Harness

IDS = torch.randint(0, 197, (21,), generator=torch.Generator().manual_seed(1)).tolist()
SEQUENCES = [(IDS[:14], 0, list(range(1, 8))), (IDS[14:], 0, [8, 9])]
TIME_LIMIT_S = 600


class TreeSum:
    """Adds up a tensor of each of `size` threads as a binary tree in the order of ranks."""

    def __init__(self, size: int) -> None:
        self.tensors: list[torch.Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=TIME_LIMIT_S)

    def of_rank(self, rank: int):
        def reduce(tensor: torch.Tensor) -> None:
            assert tensor.dtype is torch.float32, "partial sums are not rounded"
            self.tensors[rank] = tensor
            self.barrier.wait()
            sums = list(self.tensors)
            while len(sums) > 1:
                sums = [first + second for first, second in zip(sums[::2], sums[1::2], strict=True)]
            self.barrier.wait()
            tensor.copy_(sums[0])

        return reduce


def checkpoint(config: PretrainedConfig) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The configuration and random tensors of a model, under canonical names."""
    hf_config = config.to_dict()
    random = torch.Generator().manual_seed(7)
    state = {}
    for name, shape in decoder_spec(hf_config).tensor_shapes().items():
        numbers = torch.randn(shape, generator=random) * 0.2
        state[name] = 1 + numbers if "norm" in name and name.endswith("weight") else numbers
    return hf_config, state


class Packed:
    """Every matrix in integers with a scale for 32 inputs; `super`: in super-groups of all inputs."""

    def __init__(self, bits: int, *, in_super_groups: bool = False) -> None:
        self.bits = bits
        self.form = f"int{bits}_super" if in_super_groups else f"int{bits}_groups"

    def plan(self, part: LayerSpec) -> PartPlan:
        n, k = part.shape
        return PartPlan((f"{part.name}.weight",), self.form, "int8", self.form, n * k)

    def pack(self, part: LayerSpec, tensors: dict[str, torch.Tensor]) -> CanonicalWeight:
        n, k = part.shape
        zero = 1 << (self.bits - 1)
        groups = tensors[f"{part.name}.weight"].view(n, k // 32, 32)
        scale = (groups.abs().amax(-1) / (zero - 1)).clamp(min=1e-6).half()
        steps = (groups / scale.float().unsqueeze(-1)).round().clamp(1 - zero, zero - 1)
        integers = (steps + zero).to(torch.uint8).view(n, k)
        if self.bits == 4:
            integers = integers[:, ::2] | integers[:, 1::2] << 4
        if self.form == "int4_super":
            sub_scale = (scale / scale.amax(1, keepdim=True) * 100).to(torch.int8)
            return SuperGroups(4, 32, k, integers, scale.amax(1, keepdim=True) / 100, sub_scale=sub_scale, zero=zero)
        return IntGroups(self.bits, 32, integers, scale, None, zero)


def settings(kernels: str) -> dict[str, Any]:
    """The harness' arguments of `native` kernels and attention, or of torch's that compute row by row."""
    if kernels == "native":
        return {"kernels": [NativeKernels(1)], "backend": CpuPagedAttention()}
    return {"kernels": [RowKernels()], "backend": TorchSDPA(by_query=True)}


def divided(hf_config: dict, state: dict[str, torch.Tensor], size: int, **more: Any) -> torch.Tensor:
    """All logits of a model in `size` parts: those of each rank, side by side."""
    return logits(parts_of(hf_config, state, size, **more))


def parts_of(
    hf_config: dict,
    state: dict[str, torch.Tensor],
    size: int,
    experts: ExpertPlacement = ExpertPlacement(),  # noqa: B008 immutable
    **more: Any,
) -> list[Harness]:
    """The parts of a model, which add up their sums."""
    total = TreeSum(size)
    parts = [Part(rank, size, experts=experts) for rank in range(size)]
    return [Harness(hf_config, state, part=part, reduce=total.of_rank(part.rank), **more) for part in parts]


def logits(parts: list[Harness]) -> torch.Tensor:
    """All logits of the parts, side by side."""
    with ThreadPoolExecutor(len(parts)) as threads:
        running = [threads.submit(part.run, SEQUENCES) for part in parts]
        return torch.cat([one.result(TIME_LIMIT_S) for one in running], dim=1)
