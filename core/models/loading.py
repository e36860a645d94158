"""From a checkpoint to prepared weights, one tensor at a time: the peak is the weights plus one layer.

Owns: which parts are read, packed, fused and prepared, and in which order memory is given back.
Never does: know a file format (loaders), a packing (quantization methods) or a chip (kernels).
Called by: the worker, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from tqdm import tqdm

from core.api.checkpoint import CheckpointManifest
from core.api.errors import CheckpointError, PluginError
from core.api.specs import Activation, DensePlan, LayerSpec, PartPlan
from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.models.decoder import BlockWeights, DecoderWeights
from core.models.mixers import build_mixer
from core.models.mlp import ExpertsMLP, GatedMLP
from core.models.spec import DecoderSpec
from core.plugin.contracts import LinearKernel, Loader, QuantizationMethod
from core.weights.formats import CanonicalWeight, Dense, fuse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DENSE_ACTIVATION: dict[str, Activation] = {"float32": "none", "bfloat16": "bf16", "float16": "none"}


@dataclass(slots=True)
class PendingLinear:
    """A linear layer whose tensors are still being read."""

    parts: tuple[LayerSpec, ...]
    plans: list[PartPlan | DensePlan]
    missing: set[str]
    install: Callable[[list[LinearKernel]], None]
    tensors: dict[str, Tensor] = field(default_factory=dict)


class WeightLoading:
    """Builds `DecoderWeights` from a loader's tensors."""

    def __init__(
        self,
        spec: DecoderSpec,
        manifest: CheckpointManifest,
        method: QuantizationMethod | None,
        kernels: KernelSet,
        dtype: str,
        activation_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec, self.manifest, self.method, self.kernels = spec, manifest, method, kernels
        self.dtype, self.activation_dtype, self.device = dtype, activation_dtype, device
        self.pending: dict[str, PendingLinear] = {}
        self.vectors: dict[str, Tensor] = {}

    def run(self, loader: Loader, *, progress: bool = False) -> DecoderWeights:
        """Read every tensor once. Raises CheckpointError when one is missing or has another shape."""
        self._check_shapes()
        built: dict[str, Linear | LinearKernel] = {}
        self._expect("embedding", (self.spec.embedding(),), built, single=True)
        if not self.spec.tied:
            self._expect("head", (self.spec.head(),), built, single=True)
        for index in range(len(self.spec.blocks)):
            for role, parts in self.spec.block_linears(index).items():
                self._expect(f"{index}.{role}", parts, built)
        blocks = range(len(self.spec.blocks))
        vectors = {name for i in blocks for name, _ in self.spec.block_norms(i).values()} | {"model.norm.weight"}
        vectors |= {name for i in blocks for name, _ in self.spec.block_params(i).values()}
        reads = [*dict.fromkeys(name for linear in self.pending.values() for name in linear.missing), *vectors]
        bar = tqdm(total=len(reads), desc="Loading weights", unit="tensor", disable=not progress, leave=False)
        owners = {name: key for key, linear in self.pending.items() for name in linear.missing}
        for name, tensor in loader.iter(self.manifest, reads):
            if name in vectors:
                self.vectors[name] = tensor.to(torch.float32, copy=True)
            else:
                self._arrive(owners[name], name, tensor)
            bar.update()
        bar.close()
        if self.pending or len(self.vectors) != len(vectors):
            absent = [n for linear in self.pending.values() for n in linear.missing] + sorted(
                vectors - set(self.vectors)
            )
            raise CheckpointError(
                f"The loader did not deliver {absent[0]} (and {len(absent) - 1} more) of {self.manifest.ref}."
            )
        return self._assemble(built)

    def _check_shapes(self) -> None:
        plans = {f"{part.name}.weight": self._plan(part) for part in self.spec.linears()}
        shapes = self.spec.tensor_shapes()
        expected = {
            read: shapes.get(read) for name in shapes for read in (plans[name].reads if name in plans else [name])
        }
        for name, shape in expected.items():
            info = self.manifest.tensors.get(name)
            if info is None:
                raise CheckpointError(
                    f"{self.manifest.ref} has no tensor '{name}', which a {self.spec.family} model of "
                    f"{len(self.spec.blocks)} layers needs; the checkpoint is incomplete."
                )
            if shape is not None and tuple(info.shape) != tuple(shape):
                raise CheckpointError(
                    f"Tensor '{name}' of {self.manifest.ref} has shape {list(info.shape)}; the configuration says "
                    f"{list(shape)}. The checkpoint and its configuration do not belong together."
                )

    def _plan(self, part: LayerSpec) -> PartPlan | DensePlan:
        if self.method is None:
            return DensePlan(reads=(f"{part.name}.weight",))
        plan = self.method.plan(part)
        if isinstance(plan, PartPlan | DensePlan):
            return plan
        raise PluginError(f"The quantization method cannot serve {part.name}: {plan.reason}")

    def _expect(
        self, key: str, parts: tuple[LayerSpec, ...], built: dict[str, Linear | LinearKernel], single: bool = False
    ) -> None:
        plans = [self._plan(part) for part in parts]
        missing = {name for plan in plans for name in plan.reads}
        missing |= {f"{part.name}.bias" for part in parts if part.bias}

        def install(kernels: list[LinearKernel]) -> None:
            built[key] = kernels[0] if single else Linear(kernels)

        self.pending[key] = PendingLinear(parts, plans, missing, install)

    def _arrive(self, key: str, name: str, tensor: Tensor) -> None:
        """Keep a tensor until its layer is complete, then prepare the layer and drop what was read."""
        linear = self.pending[key]
        linear.missing.discard(name)
        linear.tensors[name] = tensor if not linear.missing else tensor.clone()
        if not linear.missing:
            linear.install(self._prepare(linear))
            del self.pending[key]

    def _prepare(self, linear: PendingLinear) -> list[LinearKernel]:
        """Pack each part, fuse neighbours with equal fuse keys, hand the results to the kernels."""
        groups: list[tuple[tuple[str, Activation], list[CanonicalWeight], list[LayerSpec]]] = []
        for part, plan in zip(linear.parts, linear.plans, strict=True):
            if isinstance(plan, DensePlan):
                key: tuple[str, Activation] = ("dense", DENSE_ACTIVATION[self.dtype])
                weight: CanonicalWeight = Dense(linear.tensors[plan.reads[0]].to(DTYPES[self.dtype], copy=True))
            else:
                key = (plan.fuse_key, plan.activation)
                weight = self.method.pack(part, {name: linear.tensors[name] for name in plan.reads})  # type: ignore[union-attr]
            if groups and groups[-1][0] == key:
                groups[-1][1].append(weight)
                groups[-1][2].append(part)
            else:
                groups.append((key, [weight], [part]))
        linear_kernels = []
        for (_, activation), weights, parts in groups:
            bias = self._bias(parts, linear.tensors)
            moved = fuse(weights) if self.device.type == "cpu" else fuse(weights).to(self.device)
            linear_kernels.append(self.kernels.linear(moved, activation=activation, bias=bias))
        return linear_kernels

    def _bias(self, parts: list[LayerSpec], tensors: dict[str, Tensor]) -> Tensor | None:
        if not any(part.bias for part in parts):
            return None
        pieces = [tensors[f"{part.name}.bias"] for part in parts]
        return torch.cat(pieces).to(self.device, self.activation_dtype)

    def _assemble(self, built: dict[str, Linear | LinearKernel]) -> DecoderWeights:
        def norm(name: str) -> Tensor:
            return (self.vectors[name] + self.spec.norm_offset).to(self.device, torch.float32)

        blocks = []
        for index in range(len(self.spec.blocks)):
            layers: dict[str, Linear] = {role: built[f"{index}.{role}"] for role in self.spec.block_linears(index)}  # type: ignore[misc]
            norms = {role: norm(name) for role, (name, _) in self.spec.block_norms(index).items()}
            named = self.spec.block_params(index).items()
            params = {role: self.vectors[name].to(self.device) for role, (name, _) in named}
            mixer = build_mixer(self.spec, index, self.kernels, layers, norms, params)
            blocks.append(BlockWeights(mixer, self._mlp(index, layers), norms))
        embedding: LinearKernel = built["embedding"]  # type: ignore[assignment]
        head: LinearKernel = embedding if self.spec.tied else built["head"]  # type: ignore[assignment]
        return DecoderWeights(embedding, head, norm("model.norm.weight"), blocks)

    def _mlp(self, index: int, layers: dict[str, Linear]) -> GatedMLP | ExpertsMLP:
        experts, activation = self.spec.blocks[index].experts, self.spec.activation
        if experts is None:
            return GatedMLP(self.kernels, layers["gate_up"], layers["down"], activation)
        gate_up, down = ([layers[f"{side}.{e}"] for e in range(experts.count)] for side in ("gate_up", "down"))
        return ExpertsMLP(self.kernels, layers["router"], gate_up, down, activation, experts.routing)
