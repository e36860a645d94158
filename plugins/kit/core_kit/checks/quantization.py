"""Checks of quantization methods: plans, packing, values, memory.

Owns: the checks. Never does: know a particular packing; the reference is `dequantize` of the canonical weight.
Called by: `core_kit.suite`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from core.api.errors import CoreError
from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported
from core_config.stages.memory import weights_bytes
from core_kit.case import Failure, Skipped, Subject
from core_kit.checkpoints import Sample, open_sample
from core_kit.oracles.numbers import close, distance, generator, same_bits
from core_runtime.layers.kernels import KernelSet
from core_runtime.models.families import decoder_spec, layer_specs
from core_runtime.models.tensors.loading import WeightLoading
from core_runtime.weights.formats import CanonicalWeight, can_fuse, fuse

ALLOWED_DISTANCE = {
    "int8": 0.03,
    "fp8": 0.06,
    "float8": 0.06,
    "int4": 0.25,
    "nf4": 0.25,
    "mxfp4": 0.3,
    "nvfp4": 0.3,
    "fp4": 0.3,
}
OTHER_DISTANCE = 0.5
SHAPES = ((1, 16), (7, 64), (48, 128), (33, 100), (5, 24), (64, 31))
ODD_VALUES = {"zeros": 0.0, "tiny values": 1e-20, "large values": 1e4}


def plans_every_shape(subject: Subject) -> None:
    """plan answers every role and shape with a plan, or with a sentence why not."""
    method = subject.loaded
    for role in ("linear", "head", "embedding"):
        for shape in SHAPES:
            name = "model.layers.0.self_attn.q_proj"
            plan = method.plan(LayerSpec(name, role, shape))
            if isinstance(plan, Unsupported):
                if not plan.reason.strip():
                    raise Failure(f"plan refuses a {role} part of shape {shape} without a reason")
            elif not isinstance(plan, DensePlan | PartPlan):
                raise Failure(f"plan answered {plan!r:.60} for a {role} part of shape {shape}; see QuantizationMethod")
            elif isinstance(plan, PartPlan) and plan.nbytes <= 0:
                raise Failure(f"plan tells {plan.nbytes} bytes for a {role} part of shape {shape}")


def reads_what_is_there(subject: Subject) -> None:
    """Every plan reads tensors that the checkpoint has."""
    there = subject.sample.manifest.tensors
    for part, plan in _plans(subject):
        missing = [name for name in plan.reads if name not in there]
        if missing:
            raise Failure(f"the plan of {part.name} reads '{missing[0]}', which the checkpoint does not have")


def packs_what_it_plans(subject: Subject) -> None:
    """pack builds the planned format, with the part's shape and exactly the planned bytes."""
    for part, plan, weight in _packed(subject):
        if weight.name != plan.format:
            raise Failure(f"{part.name}: planned as '{plan.format}', packed as '{weight.name}'")
        if tuple(weight.shape) != tuple(part.shape):
            raise Failure(f"{part.name}: packed to shape {tuple(weight.shape)}, expected {tuple(part.shape)}")
        if weight.nbytes != plan.nbytes:
            raise Failure(
                f"{part.name}: planned as {plan.nbytes} bytes, holds {weight.nbytes}; the memory plan is wrong"
            )


def keeps_values(subject: Subject) -> None:
    """Packed weights dequantize to the checkpoint's values, as nearly as the format can."""
    plain = _plain(subject)
    for part, plan, weight in _packed(subject):
        expected = plain.tensor(f"{part.name}.weight").float()
        apart = distance(weight.dequantize(), expected)
        allowed = _allowed_distance(plan.format)
        if not apart <= allowed:
            raise Failure(
                f"{part.name}: {apart:.1%} away from the original in the mean square; {plan.format} allows {allowed:.0%}"
            )


def owns_what_it_packs(subject: Subject) -> None:
    """A packed weight does not point into the tensors it was read from."""
    for part, plan, weight in _packed(subject, limit=2, spoil=True):
        before = weight.dequantize()
        tensors = subject.sample.tensors(plan.reads)
        fresh = subject.loaded.pack(part, tensors).dequantize()
        same_bits(before, fresh, f"{part.name} after the file's memory was reused")


def packs_equal_bits(subject: Subject) -> None:
    """Packing the same tensors twice gives the same bits, and leaves the tensors alone."""
    for part, plan, _ in _packed(subject, limit=2):
        tensors = subject.sample.tensors(plan.reads)
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        first = subject.loaded.pack(part, tensors).dequantize()
        for name, tensor in tensors.items():
            same_bits(tensor, copies[name], f"tensor '{name}' after pack")
        second = subject.loaded.pack(part, copies).dequantize()
        same_bits(second, first, f"{part.name} packed twice")


def fuses_what_shares_a_key(subject: Subject) -> None:
    """Parts of one layer with equal fuse keys can be concatenated, and keep their values."""
    spec = decoder_spec(subject.sample.manifest.config)
    for parts in spec.fused_linears(0):
        plans = [subject.loaded.plan(part) for part in parts]
        if len(parts) < 2 or not all(isinstance(plan, PartPlan) for plan in plans):
            continue
        keys = {(plan.fuse_key, plan.activation) for plan in plans}
        if len(keys) > 1:
            continue
        weights = [_pack(subject, part, plan) for part, plan in zip(parts, plans, strict=True)]
        if not can_fuse(weights):
            if all(plan.ordered for plan in plans):
                continue  # their orders differ, so loading prepares them separately
            raise Failure(
                f"{parts[0].name} and its neighbours share the fuse key '{plans[0].fuse_key}' but cannot be fused"
            )
        expected = torch.cat([weight.dequantize() for weight in weights])
        same_bits(fuse(weights).dequantize(), expected, f"{parts[0].name} and its neighbours, fused")


def survives_odd_values(subject: Subject) -> None:
    """Zeros, tiny and large weights stay finite; zeros stay zero."""
    part, plan = _first_packed(subject)
    for what, size in ODD_VALUES.items():
        tensors = subject.sample.tensors(plan.reads)
        if not all(tensor.is_floating_point() for tensor in tensors.values()):
            raise Skipped("the checkpoint is already packed; its values are given")
        resized = {}
        for name, tensor in tensors.items():
            resized[name] = tensor / tensor.abs().max() * size
        try:
            weight = subject.loaded.pack(part, resized).dequantize()
        except CoreError:
            continue  # refused with an error message, which is allowed
        if not bool(torch.isfinite(weight).all()):
            raise Failure(f"a weight of {what} dequantizes to values that are not finite")
        if size == 0.0 and bool(weight.any()):
            raise Failure("a weight of zeros dequantizes to other values")


def serves_through_kernels(subject: Subject) -> None:
    """The reference kernels multiply with the packed weight as with its dequantized values."""
    random = generator("serves")
    for part, plan, weight in _packed(subject, limit=3):
        x = torch.randn(5, part.shape[-1], generator=random)
        out = torch.full((5, part.shape[0]), torch.nan)
        kernel = KernelSet([]).linear(weight, activation=plan.activation)
        kernel(x, out)
        expected = x @ weight.dequantize().T
        tolerance = 1e-5 if plan.activation == "none" else 2e-2
        close(out, expected, tolerance, f"{part.name}: x @ W.T")


def within_memory_plan(subject: Subject) -> None:
    """A whole model holds exactly the bytes that the memory plan tells before anything is read."""
    sample = subject.sample
    spec = decoder_spec(sample.manifest.config)
    planned = weights_bytes(spec, subject.loaded.plan, "float32", lambda form: 1)
    loading = WeightLoading(
        spec, sample.manifest, subject.loaded, KernelSet([]), "float32", torch.float32, torch.device("cpu")
    )
    held = loading.run(sample.loader).nbytes
    if held != planned:
        raise Failure(f"the memory plan tells {planned:,} bytes of weights, {held:,} are held")


CHECKS = (
    plans_every_shape,
    reads_what_is_there,
    packs_what_it_plans,
    keeps_values,
    owns_what_it_packs,
    packs_equal_bits,
    fuses_what_shares_a_key,
    survives_odd_values,
    serves_through_kernels,
    within_memory_plan,
)


def _plans(subject: Subject) -> Iterator[tuple[LayerSpec, DensePlan | PartPlan]]:
    for part in layer_specs(subject.sample.manifest.config):
        plan = subject.loaded.plan(part)
        if isinstance(plan, Unsupported):
            raise Failure(f"the method cannot serve {part.name} of its own checkpoint: {plan.reason}")
        yield part, plan


def _first_packed(subject: Subject) -> tuple[LayerSpec, PartPlan]:
    """Return the first part that the method would keep packed. Raises Skipped when there is none."""
    for part, plan in _plans(subject):
        if isinstance(plan, PartPlan):
            return part, plan
    raise Skipped("the method leaves every part of this checkpoint plain")


def _allowed_distance(form: str) -> float:
    """Return the tolerance of a canonical format, from the first row whose name it contains."""
    for name, allowed in ALLOWED_DISTANCE.items():
        if name in form:
            return allowed
    return OTHER_DISTANCE


def _packed(
    subject: Subject, limit: int = 10, spoil: bool = False
) -> Iterator[tuple[LayerSpec, PartPlan, CanonicalWeight]]:
    """Yield the first parts that the method keeps packed. Raises Skipped when there is none."""
    count = 0
    for part, plan in _plans(subject):
        if isinstance(plan, PartPlan) and count < limit:
            count += 1
            yield part, plan, _pack(subject, part, plan, spoil)
    if not count:
        raise Skipped("the method leaves every part of this checkpoint plain; give another one with --model")


def _pack(subject: Subject, part: LayerSpec, plan: PartPlan, spoil: bool = False) -> CanonicalWeight:
    tensors = subject.sample.tensors(plan.reads)
    weight: CanonicalWeight = subject.loaded.pack(part, tensors)
    if spoil:
        for tensor in tensors.values():
            tensor.view(torch.uint8).fill_(0x5A)
    return weight


def _plain(subject: Subject) -> Sample:
    """Return the checkpoint with the original values. Raises Skipped without one."""
    if subject.reference is not None:
        return open_sample(subject.registry, subject.reference)
    tensors = subject.sample.manifest.tensors
    for _, plan in _plans(subject):
        for name in plan.reads:
            if tensors[name].dtype not in ("F32", "F16", "BF16"):
                raise Skipped("the checkpoint is packed; give its original with --reference")
    return subject.sample
