"""From a checkpoint to prepared weights, one tensor at a time: the peak is the weights plus one layer.

Owns: which parts are read, packed, fused and prepared, and in which order memory is given back.
Never does: know a file format (loaders), a packing (quantization methods) or a chip (kernels).
Called by: the worker, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from tqdm import tqdm

from core.api.checkpoint import CheckpointManifest
from core.api.errors import CheckpointError, PluginError, UserError
from core.api.specs import Activation, DensePlan, LatentSpec, LayerSpec, PartPlan
from core.layers.kernels import KernelSet
from core.layers.linear import Linear
from core.models.decoder import BlockWeights, DecoderWeights
from core.models.local import Part
from core.models.mixers import build_mixer
from core.models.mlp import ExpertsMLP, GatedMLP
from core.models.spec import DecoderSpec, mixer_parts
from core.plugin.contracts import HeadsKernel, LinearKernel, Loader, QuantizationMethod
from core.weights.formats import CanonicalWeight, Dense, fuse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DENSE_ACTIVATION: dict[str, Activation] = {"float32": "none", "bfloat16": "bf16", "float16": "none"}
WHOLE: Final = Part()
NO_PAIRS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType({})


@dataclass(slots=True)
class PendingLinear:
    """A linear layer whose tensors are still being read. build: what it becomes when all are there."""

    parts: tuple[LayerSpec, ...]
    plans: list[PartPlan | DensePlan]
    missing: set[str]
    build: Callable[[PendingLinear], Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


class WeightLoading:
    """Builds `DecoderWeights` from a loader's tensors.

    spec: of the whole model, whose tensors the checkpoint has; weights are cut to `part` of it after they are packed.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        manifest: CheckpointManifest,
        method: QuantizationMethod | None,
        kernels: KernelSet,
        dtype: str,
        activation_dtype: torch.dtype,
        device: torch.device,
        part: Part = WHOLE,
    ) -> None:
        self.whole = {linear.name: linear for linear in spec.linears()}
        self.whole_shapes = spec.tensor_shapes()
        self.part = part
        self.spec, self.manifest, self.method, self.kernels = spec.local(part), manifest, method, kernels
        self.dtype, self.activation_dtype, self.device = dtype, activation_dtype, device
        self.pending: dict[str, PendingLinear] = {}
        self.built: dict[str, Any] = {}
        self.vectors: dict[str, Tensor] = {}

    def run(self, loader: Loader, *, progress: bool = False) -> DecoderWeights:
        """Read every tensor once. Raises CheckpointError when one is missing or has another shape."""
        self._check_shapes()
        if self.spec.embeds_tokens:
            self._expect("embedding", (self.spec.embedding(),), lambda pending: self._prepare(pending)[0])
        if self.spec.holds_head and not self.spec.tied:
            self._expect("head", (self.spec.head(),), lambda pending: self._prepare(pending)[0])
        vectors = {"model.norm.weight"} if self.spec.holds_head else set()
        for index in range(len(self.spec.blocks)):
            vectors |= self._expect_block(index)
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
        return self._assemble()

    def _expect_block(self, index: int) -> set[str]:
        """Wait for the matrices of one block. Returns the names of its vectors."""
        parts, correction = mixer_parts(self.spec, index), self.spec.correction(index)
        for role, linears in self.spec.block_linears(index).items():
            self._expect(f"{index}.{role}", linears, lambda pending: Linear(self._prepare(pending, parts.interleaved)))
        if parts.absorbed is not None:
            mixer = self.spec.blocks[index].mixer
            assert isinstance(mixer, LatentSpec)
            self._expect(f"{index}.absorbed", (parts.absorbed,), lambda pending: self._halves(pending, mixer))
        vectors = {name for name, _ in (*self.spec.block_norms(index).values(), *parts.params.values())}
        return vectors if correction is None else {*vectors, correction[0]}

    def _check_shapes(self) -> None:
        plans = {f"{part.name}.weight": self._plan(self.whole[part.name]) for part in self.spec.linears()}
        shapes = {name: self.whole_shapes[name] for name in self.spec.tensor_shapes()}
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

    def _expect(self, key: str, parts: tuple[LayerSpec, ...], build: Callable[[PendingLinear], Any]) -> None:
        plans = [self._plan(self.whole[part.name]) for part in parts]
        missing = {name for plan in plans for name in plan.reads}
        missing |= {f"{part.name}.bias" for part in parts if part.bias}
        self.pending[key] = PendingLinear(parts, plans, missing, build)

    def _arrive(self, key: str, name: str, tensor: Tensor) -> None:
        """Keep a tensor until its layer is complete, then prepare the layer and drop what was read."""
        linear = self.pending[key]
        linear.missing.discard(name)
        linear.tensors[name] = tensor if not linear.missing else tensor.clone()
        if not linear.missing:
            self.built[key] = linear.build(linear)
            del self.pending[key]

    def _pack(self, linear: PendingLinear) -> list[tuple[str, Activation, CanonicalWeight]]:
        """Fuse key, activation and weight of each part, cut to what this rank holds."""
        found: list[tuple[str, Activation, CanonicalWeight]] = []
        for part, plan in zip(linear.parts, linear.plans, strict=True):
            if isinstance(plan, DensePlan):
                weight = Dense(linear.tensors[plan.reads[0]].to(DTYPES[self.dtype], copy=True))
                found.append(("dense", DENSE_ACTIVATION[self.dtype], self._cut(weight, part)))
            else:
                assert self.method is not None, "only a method plans parts that are packed"
                tensors = {name: linear.tensors[name] for name in plan.reads}
                packed = self.method.pack(self.whole[part.name], tensors)
                found.append((plan.fuse_key, plan.activation, self._cut(packed, part)))
        return found

    def _cut(self, weight: CanonicalWeight, part: LayerSpec) -> CanonicalWeight:
        """The rows and columns of a packed weight that this rank holds. Raises UserError where its format refuses."""
        n, k = weight.shape
        rows, columns = part.shape
        if rows < n:
            weight = weight.rows(torch.arange(n)[self.part.slice_of(n, rows)])
        if columns < k:
            if not hasattr(weight, "columns"):
                why = f"weights of format '{weight.name}' have no `columns`"
                raise UserError(f"{part.name} cannot be divided into {self.part.size} parts: {why}")
            try:
                weight = weight.columns(self.part.slice_of(k, columns))
            except (ValueError, NotImplementedError) as error:
                raise UserError(f"{part.name} cannot be divided into {self.part.size} parts: {error}") from error
        return weight

    def _prepare(self, linear: PendingLinear, pairs: Mapping[str, tuple[int, int]] = NO_PAIRS) -> list[LinearKernel]:
        """Pack each part, fuse neighbours with equal fuse keys, hand the results to the kernels.

        pairs: of parts that give interleaved rotary pairs, see `MixerParts.interleaved`.
        """
        groups: list[tuple[tuple[str, Activation], list[CanonicalWeight], list[LayerSpec]]] = []
        for part, (fuse_key, activation, weight) in zip(linear.parts, self._pack(linear), strict=True):
            key = fuse_key, activation
            ordered = weight.rows(halves_order(part.shape[0], *pairs[part.name])) if part.name in pairs else weight
            if groups and groups[-1][0] == key:
                groups[-1][1].append(ordered)
                groups[-1][2].append(part)
            else:
                groups.append((key, [ordered], [part]))
        linear_kernels = []
        for (_, activation), weights, parts in groups:
            bias = self._bias(parts, linear.tensors, pairs)
            moved = fuse(weights) if self.device.type == "cpu" else fuse(weights).to(self.device)
            linear_kernels.append(self.kernels.linear(moved, activation=activation, bias=bias))
        return linear_kernels

    def _bias(
        self, parts: list[LayerSpec], tensors: dict[str, Tensor], pairs: Mapping[str, tuple[int, int]]
    ) -> Tensor | None:
        """Of fused parts: zeros for those that have none, None when no part has one.

        Of a layer whose inputs are divided the first rank alone has the bias, so that the sum over ranks has it once.
        """
        biased = [part for part in parts if part.bias and (self.part.rank == 0 or not self._row_parallel(part))]
        if not biased:
            return None
        pieces = []
        for part in parts:
            rows = part.shape[0]
            piece = torch.zeros(rows)
            if part in biased:
                whole = tensors[f"{part.name}.bias"].float()
                piece = whole[self.part.slice_of(len(whole), rows)]
            pieces.append(piece[halves_order(len(piece), *pairs[part.name])] if part.name in pairs else piece)
        return torch.cat(pieces).to(self.device, self.activation_dtype)

    def _row_parallel(self, part: LayerSpec) -> bool:
        """Whether ranks have different inputs of the layer, hence partial sums."""
        return part.shape[1] < self.whole[part.name].shape[1]

    def _halves(self, linear: PendingLinear, mixer: LatentSpec) -> tuple[HeadsKernel, HeadsKernel]:
        """The up-projection of a latent, cut by heads: from queries to latents, and from latents to values.

        Its rows belong to (head, key then value). A packed one is unpacked here: one of its halves multiplies along N.
        """
        ((_, _, weight),) = self._pack(linear)
        plain = weight.weight if isinstance(weight, Dense) else weight.dequantize()
        heads = plain.to(self.device, DTYPES[self.dtype]).unflatten(0, (mixer.num_heads, -1))
        keys, values = heads.split([mixer.head_size_nope, mixer.head_size_v], dim=1)
        activation = DENSE_ACTIVATION[self.dtype]
        return (
            self.kernels.heads(keys.transpose(1, 2).contiguous(), activation=activation),
            self.kernels.heads(values.contiguous(), activation=activation),
        )

    def _assemble(self) -> DecoderWeights:
        def norm(name: str) -> Tensor:
            return (self.vectors[name] + self.spec.norm_offset).to(self.device, torch.float32)

        blocks = []
        for index in range(len(self.spec.blocks)):
            layers: dict[str, Linear] = {role: self.built[f"{index}.{role}"] for role in self.spec.block_linears(index)}
            norms = {role: norm(name) for role, (name, _) in self.spec.block_norms(index).items()}
            named = mixer_parts(self.spec, index).params.items()
            params = {role: self.vectors[name].to(self.device) for role, (name, _) in named}
            heads = self.built.get(f"{index}.absorbed")
            mixer = build_mixer(self.spec, index, self.kernels, layers, heads, norms, params)
            blocks.append(BlockWeights(mixer, self._mlp(index, layers), norms))
        embedding: LinearKernel | None = self.built.get("embedding")
        if not self.spec.holds_head:
            return DecoderWeights(embedding, None, None, blocks)
        head: LinearKernel | None = embedding if self.spec.tied else self.built["head"]
        return DecoderWeights(embedding, head, norm("model.norm.weight"), blocks)

    def _mlp(self, index: int, layers: dict[str, Linear]) -> GatedMLP | ExpertsMLP:
        experts, activation = self.spec.blocks[index].experts, self.spec.activation
        if experts is None:
            return GatedMLP(self.kernels, layers["gate_up"], layers["down"], activation)
        shared = None
        if experts.shared_intermediate_size:
            shared = GatedMLP(self.kernels, layers["shared_gate_up"], layers["shared_down"], activation)
        found = self.spec.correction(index)
        correction = None if found is None else self.vectors[found[0]].to(self.device, torch.float32)
        gate_up, down = ([layers[f"{side}.{e}"] for e in experts.held_ids] for side in ("gate_up", "down"))
        mlp = ExpertsMLP(self.kernels, layers["router"], gate_up, down, activation, experts.routing, correction, shared)
        mlp.held = experts.held
        return mlp


def halves_order(rows: int, head: int, rotary: int) -> Tensor:
    """Where each row comes from, int64 [rows], when the pairs (2i, 2i + 1) of the last `rotary` rows of each `head` rows
    become (i, i + rotary / 2)."""
    order = torch.arange(rows).view(-1, head)
    pairs = order[:, head - rotary :].clone()
    order[:, head - rotary :] = torch.cat([pairs[:, ::2], pairs[:, 1::2]], dim=1)
    return order.flatten()
