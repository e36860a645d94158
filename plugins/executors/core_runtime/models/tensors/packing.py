"""Packing of a layer's tensors to prepared kernels.

Owns: how parts are packed, cut to a rank's share, fused and passed to the kernels.
Never does: read a checkpoint, know a packing (quantization methods) or a chip (kernels).
Called by: the parts of the weight loading, once each is complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from core.api.errors import CheckpointError, PluginError, UserError
from core.api.specs import Activation, DensePlan, LatentSpec, LayerSpec, PartPlan, RowOrder
from core_runtime.contracts import HeadsKernel, LinearKernel, PacksParts, QuantizationMethod, StoresRows
from core_runtime.layers.heads import LinearHeads
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.partial_sums import SummedLinear
from core_runtime.layers.preparing import Room
from core_runtime.models.tensors.part_store import Origin, PartStore
from core_runtime.models.tensors.prepared import PreparedWeights, Recorder, kernel_name
from core_runtime.models.tensors.rank_share import RankShare
from core_runtime.models.tensors.row_order import row_order
from core_runtime.specs.model_part import Part
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.weights.experts import Experts
from core_runtime.weights.formats import CanonicalWeight, Dense, StoredRows, can_fuse, fuse
from core_runtime.weights.prepared_inputs import PreparedInputs
from core_runtime.weights.stored_rows import plain_rows

Tensors = Mapping[str, Tensor]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DENSE_ACTIVATION: dict[str, Activation] = {"float32": "none", "bfloat16": "bf16", "float16": "none"}
Orders = Mapping[str, tuple[RowOrder, ...]]
"""Name of a part → the orders that bring its rows into the order of the engine."""
NO_ORDERS: Final[Orders] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Packed:
    """One part of a layer, packed and cut.

    part: the rank's share of the part.
    weight: the part in its canonical form.
    fuse_key: neighbours with equal keys and activations become one kernel where their weights can be fused.
    activation: the precision of the inputs.
    """

    part: LayerSpec
    weight: CanonicalWeight
    fuse_key: str
    activation: Activation


class Packing:
    """The settings with which all parts of one model become kernels.

    spec: shape of the whole model; methods plan whole parts.
    part: this rank's share of the model.
    method: unpacks the checkpoint's format; None: all matrices are plain.
    dtype: dtype of plain matrices.
    activation_dtype: dtype of biases and of tensors between layers.
    store: store of the built parts, with memory for them; None: kernels allocate for themselves, and no later model
        takes parts over.
    prepared: saved kernels, which replace the packing of tensors; None: there are none.
    recorder: callback for each kernel that is made, or None.

    room: allocates memory for kernels; None: each allocates its own.
    read_nbytes: bytes of matrices that a rank of several has read so far.
    unordered: names of layers whose sums over ranks have bits that depend on the number of ranks.
    """

    def __init__(
        self,
        spec: ModelSpec,
        part: Part,
        method: QuantizationMethod | None,
        kernels: KernelSet,
        dtype: str,
        activation_dtype: torch.dtype,
        device: torch.device,
        store: PartStore | None = None,
        prepared: PreparedWeights | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._share = RankShare(part, {linear.name: linear for linear in spec.linears()})
        self.cut = self._share.cut
        self._plans: dict[str, PartPlan | DensePlan] = {}
        self.part = part
        self._method = method
        self._dtype = dtype
        self.activation_dtype = activation_dtype
        self.device = device
        self.store = store
        self.room: Room | None = None if store is None else store.room
        if prepared is not None and part.size > 1:
            raise CheckpointError(
                f"The saved kernels are those of a whole model, and cannot be divided into {part.size} parts; start it with "
                "the model that they were made of, without --keep-weights."
            )
        self.prepared = prepared
        self.read_nbytes = 0
        self.unordered: set[str] = set()
        self._recorder = recorder
        self.kernels = kernels
        self._row_layouts = kernels.row_layouts

    def restored(self, parts: Sequence[LayerSpec]) -> list[LinearKernel] | None:
        """Return the saved kernels of these parts, None where there are none. Raises CheckpointError."""
        if self.prepared is None:
            return None
        name = kernel_name(parts)
        found = self.prepared.kernels(name, self.kernels, self.room)
        if found is None:
            return None
        kernels = [one.kernel for one in found]
        held = sum(math.prod(kernel.shape) for kernel in kernels)
        wanted = sum(math.prod(part.shape) for part in parts)
        if held != wanted:
            raise CheckpointError(
                f"The saved kernels of '{name}' have {held} weights, expected {wanted}; convert again."
            )
        if self._recorder is not None:
            reads = self.reads(parts)
            for one in found:
                self._recorder(name, reads, one.layout, one.saved)
        return kernels

    def taken_over(self, parts: Sequence[LayerSpec]) -> Any | None:
        """Return what the previous model built of these parts, if nothing about them has changed; None otherwise."""
        return None if self.store is None else self.store.find(kernel_name(parts), self._origin(parts))

    def keep(self, parts: Sequence[LayerSpec], built: Any) -> None:
        """Store what was built of these parts, for the next model."""
        if self.store is not None:
            self.store.keep(kernel_name(parts), self._origin(parts), built)

    def _origin(self, parts: Sequence[LayerSpec]) -> Origin:
        plans = tuple(self.plan(part) for part in parts)
        return Origin(frozenset(self.reads(parts)), plans)

    def plan(self, part: LayerSpec) -> PartPlan | DensePlan:
        """Return how a part is stored. Raises PluginError when the method does not support it."""
        known = self._plans.get(part.name)
        if known is not None:
            return known
        if self._method is None:
            return DensePlan(reads=(f"{part.name}.weight",))
        plan = self._method.plan(self._share.whole[part.name])
        if isinstance(plan, PartPlan | DensePlan):
            self._plans[part.name] = plan
            return plan
        raise PluginError(f"The quantization method cannot serve {part.name}: {plan.reason}")

    def reads(self, parts: Iterable[LayerSpec]) -> set[str]:
        """Return the names of the tensors that these parts are made of."""
        names: set[str] = set()
        for part in parts:
            names.update(self.plan(part).reads)
            if part.bias:
                names.add(f"{part.name}.bias")
        return names

    def form(self, part: LayerSpec) -> tuple[str, str, Activation]:
        """Return (format, fuse key, activation) of a part, which are known before any tensor is read."""
        plan = self.plan(part)
        if isinstance(plan, DensePlan):
            return self._dtype, "dense", DENSE_ACTIVATION[self._dtype]
        return plan.format, plan.fuse_key, plan.activation

    def pack(self, part: LayerSpec, tensors: Tensors, orders: Orders = NO_ORDERS, *, stored: bool = False) -> Packed:
        """Return one part with its rows in the order of the engine, cut to this rank's share.

        orders: see `MixerParts.orders`.
        stored: the weight may be `StoredRows`, which need `tensors` as long as they are used.
        Raises UserError where its format cannot be cut.
        """
        plan = self.plan(part)
        if self.part.size > 1:
            return self._pack_part(part, plan, tensors, orders)
        weight: CanonicalWeight | None = self._stored(part, plan, tensors) if stored else None
        if isinstance(plan, DensePlan):
            if weight is None:
                weight = Dense(tensors[plan.reads[0]].to(DTYPES[self._dtype], copy=True))
            return Packed(part, self._ordered(weight, part, orders), "dense", DENSE_ACTIVATION[self._dtype])
        if weight is None:
            assert self._method is not None, "only a method plans parts that are packed"
            read = {name: tensors[name] for name in plan.reads}
            weight = self._method.pack(self._share.whole[part.name], read)
        return Packed(part, self._ordered(weight, part, orders), plan.fuse_key, plan.activation)

    def _pack_part(self, part: LayerSpec, plan: DensePlan | PartPlan, tensors: Tensors, orders: Orders) -> Packed:
        """Return a rank's share of a part, from the rows and columns that it holds alone where the format allows it."""
        read = {name: tensors[name] for name in plan.reads}
        whole = self._share.whole[part.name]
        rows = self._share.rows_in_file(part, orders.get(part.name, ()))
        columns = self._share.columns(part)
        if isinstance(plan, DensePlan):
            taken = read[plan.reads[0]]
            # In two steps, so that only the pages of these rows and columns of a mapped file are read.
            taken = taken if columns is None else taken[:, columns]
            taken = taken.clone() if rows is None else taken.index_select(0, rows)
            self.read_nbytes += taken.nbytes
            return Packed(part, Dense(taken.to(DTYPES[self._dtype])), "dense", DENSE_ACTIVATION[self._dtype])
        nbytes = sum(tensor.nbytes for tensor in read.values())
        if isinstance(self._method, PacksParts):
            self.read_nbytes += nbytes * math.prod(part.shape) // math.prod(whole.shape)
            try:
                weight = self._method.pack_part(whole, read, rows, columns)
            except (ValueError, NotImplementedError) as error:
                raise self._share.refusal(part, error) from error
        else:
            assert self._method is not None, "only a method plans parts that are packed"
            self.read_nbytes += nbytes
            weight = self._share.cut_weight(self._ordered(self._method.pack(whole, read), part, orders), part)
        return Packed(part, weight, plan.fuse_key, plan.activation)

    def _stored(self, part: LayerSpec, plan: DensePlan | PartPlan, tensors: Tensors) -> StoredRows | None:
        """Return a part's rows as they lie in the file; None where the kernels cannot read them there."""
        # On another device, weights need their canonical form.
        if self.device.type != "cpu" or not self._row_layouts:
            return None
        weight = None
        if isinstance(plan, DensePlan):
            name = plan.reads[0]
            weight = plain_rows(name, tensors[name].to(DTYPES[self._dtype]))
        elif isinstance(self._method, StoresRows):
            weight = self._method.stored(self._share.whole[part.name], {name: tensors[name] for name in plan.reads})
        return weight if weight is not None and weight.layout in self._row_layouts else None

    def _ordered(self, weight: CanonicalWeight, part: LayerSpec, orders: Orders) -> CanonicalWeight:
        """Return the whole weight with its rows in the order of the engine."""
        wanted = orders.get(part.name)
        if not wanted:
            return weight
        return weight.rows(row_order(wanted, weight.shape[0]))

    def linear(self, parts: Sequence[LayerSpec], tensors: Tensors, orders: Orders = NO_ORDERS) -> Linear:
        """Return a layer of parts side by side. Neighbours with equal fuse keys become one kernel.

        Their tensors may still prevent fusion: an order of inputs is only known once it is read.
        orders: see `MixerParts.orders`; orders of the whole model.
        """
        groups: list[list[Packed]] = []
        before: tuple[str, Activation] | None = None
        for part in parts:
            packed = self.pack(part, tensors, orders, stored=True)
            key = packed.fuse_key, packed.activation
            if key == before and can_fuse([groups[-1][0].weight, packed.weight]):
                groups[-1].append(packed)
            else:
                groups.append([packed])
            before = key
        # Weights with steps before the product are not saved, so neither are the others of their layer.
        recorded = not any(isinstance(packed.weight, PreparedInputs) for group in groups for packed in group)
        kernels = [self._kernel(parts, group, tensors, orders, recorded=recorded) for group in groups]
        if not self._share.sums(parts[0]):
            return Linear(kernels)
        bias = self.bias(parts, tensors, orders)
        whole_inputs = self._share.whole[parts[0].name].shape[-1]
        return SummedLinear(kernels, None if bias is None else self.on_device(bias), whole_inputs)

    def matrix(self, part: LayerSpec, tensors: Tensors) -> LinearKernel:
        """Return the kernel of a part that stands alone: the embedding, the head."""
        return self._kernel([part], [self.pack(part, tensors, stored=True)], tensors, NO_ORDERS)

    def halves(self, part: LayerSpec, mixer: LatentSpec, tensors: Tensors) -> tuple[HeadsKernel, HeadsKernel]:
        """Return the up-projection of a latent, cut by heads: from queries to latents, and from latents to values.

        Its rows belong to (head, key then value). A packed one is unpacked here: one of its halves multiplies along N.
        """
        weight = self.pack(part, tensors).weight
        if isinstance(weight, PreparedInputs):
            raise UserError(
                f"{part.name} is multiplied as a part of attention, so its inputs cannot be changed as the checkpoint "
                "declares; leave --quantization-config.activation out, or choose a checkpoint without transforms."
            )
        plain = weight.weight if isinstance(weight, Dense) else weight.dequantize()
        moved = plain.to(self.device, DTYPES[self._dtype])
        heads = moved.unflatten(0, (mixer.num_heads, -1))
        keys, values = heads.split([mixer.head_size_nope, mixer.head_size_v], dim=1)
        activation = DENSE_ACTIVATION[self._dtype]
        turned = keys.transpose(1, 2).contiguous()
        to_latent = self.kernels.heads(turned, activation=activation, room=self.room)
        straight = values.contiguous()
        from_latent = self.kernels.heads(straight, activation=activation, room=self.room)
        if isinstance(to_latent, LinearHeads) and isinstance(from_latent, LinearHeads):
            made = zip([*turned, *straight], [*to_latent.kernels, *from_latent.kernels], strict=True)
            for one, kernel in made:
                self._record([part], kernel, Dense(one.contiguous()), activation)
        return to_latent, from_latent

    def moved(self, experts: Experts) -> Experts:
        """Return the experts on the device."""
        return experts if self.device.type == "cpu" else experts.to(self.device)

    def on_device(self, tensor: Tensor) -> Tensor:
        """Return a vector as kernels take it: on the device, in float32."""
        return tensor.to(self.device, torch.float32)

    def as_activation(self, tensor: Tensor) -> Tensor:
        """Return a table or vector that is added to the residual stream, in the dtype of tensors between layers."""
        return tensor.to(self.device, self.activation_dtype)

    def _kernel(
        self,
        parts: Sequence[LayerSpec],
        group: Sequence[Packed],
        tensors: Tensors,
        orders: Orders,
        *,
        recorded: bool = True,
    ) -> LinearKernel:
        """Return the kernel of one group of the layer that is made of `parts`. recorded: whether the recorder is told."""
        weights = [packed.weight for packed in group]
        first = group[0]
        # The bias of a sum over ranks is added once, after it.
        bias = None if self._share.sums(first.part) else self.bias([packed.part for packed in group], tensors, orders)
        fused = fuse(weights)
        moved = fused if self.device.type == "cpu" else fused.to(self.device)
        segments = self._share.segments(first.part)
        if self._share.sums(first.part) and not self._is_tree(moved, first.activation):
            self.unordered.add(first.part.name)
        kernel = self.kernels.linear(moved, activation=first.activation, bias=bias, room=self.room, segments=segments)
        if recorded:
            self._record(parts, kernel, moved, first.activation, bias, segments)
        return kernel

    def _record(
        self,
        parts: Sequence[LayerSpec],
        kernel: LinearKernel,
        weight: CanonicalWeight,
        activation: Activation,
        bias: Tensor | None = None,
        segments: int = 1,
    ) -> None:
        """Report a kernel of `parts` to the recorder, if there is one."""
        if self._recorder is None:
            return
        saved = self.kernels.save(kernel, weight, activation=activation, bias=bias, segments=segments)
        if saved is not None:
            layout, form = saved
            self._recorder(kernel_name(parts), self.reads(parts), layout, form)

    def bias(self, parts: Sequence[LayerSpec], tensors: Tensors, orders: Orders = NO_ORDERS) -> Tensor | None:
        """Return the bias of fused parts: zeros for parts without one, None when no part has one."""
        if not any(part.bias for part in parts):
            return None
        pieces = []
        for part in parts:
            piece = torch.zeros(part.shape[0])
            if part.bias:
                whole = tensors[f"{part.name}.bias"].float()
                wanted = orders.get(part.name)
                if wanted:
                    whole = whole[row_order(wanted, len(whole))]
                piece = whole[self._share.rows(part)]
            pieces.append(piece)
        return torch.cat(pieces).to(self.device, self.activation_dtype)

    def _is_tree(self, weight: CanonicalWeight, activation: Activation) -> bool:
        """Whether a divided layer's sums have the bits of a rank that has all inputs."""
        return self._share.is_tree(weight, activation) and self.kernels.sums_in_segments(weight, activation)

    @property
    def numerics(self) -> str:
        """What results depend on besides kernels: the number of ranks, unless all their sums are float32 subtrees of one
        tree of eight segments; empty for a whole model.
        """
        return f"parts-{self.part.size}" if self.unordered else ""
