"""Check that a checkpoint fits the shape of its model, by names and shapes of tensors. Torch-free.

Owns: the lists of tensors that are missing, have another shape or are not read, and the sentences about them.
Never does: read a tensor. Called by: the configuration before torch is imported, and again by the weight loading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from core.api.specs import DensePlan, LayerSpec, PartPlan, Unsupported
from core_runtime.models.tensors.kv_scales import is_kv_scale
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec

Plan = Callable[[LayerSpec], DensePlan | PartPlan | Unsupported]
Shape = tuple[int, ...]

OWN_HEAD: Final = "lm_head.weight"
"""Name of a separate head. Some checkpoints with tied embeddings have one too; the loading compares it with the
embedding.
"""
PACKED: Final = ("U8", "I8", "I32")
"""Types of tensors that pack several numbers into one or are transposed. Only the method that unpacks them knows their
shapes.
"""
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class Misshapen(NamedTuple):
    """A tensor whose shape differs from the one that the configuration implies."""

    name: str
    shape: Shape
    expected: Shape


class TensorCheck(NamedTuple):
    """The tensors that prevent a checkpoint from being served, by canonical name.

    missing: tensors that the model reads and the checkpoint lacks.
    misshapen: tensors of another shape.
    unread: tensors of the checkpoint that the model does not read.
    num_layers: number of layers for which the checkpoint has tensors.
    """

    missing: tuple[str, ...]
    misshapen: tuple[Misshapen, ...]
    unread: tuple[str, ...]
    num_layers: int

    def problems(self, ref: str, spec: DecoderSpec) -> list[str]:
        """Return one sentence for each kind of problem; none when the checkpoint fits."""
        found: list[str] = []
        if self.missing:
            found.append(self._missing(ref, spec))
        if self.misshapen:
            found.append(self._misshapen(ref))
        if self.unread:
            found.append(self._unread(ref, spec))
        return found

    def _missing(self, ref: str, spec: DecoderSpec) -> str:
        first = self.missing[0]
        more = _more(len(self.missing) - 1)
        wanted = len(spec.blocks)
        if 0 < self.num_layers < wanted:
            return (
                f"The configuration of {ref} says {wanted} layers, its tensors are of {self.num_layers}: there is no "
                f"'{first}'{more}. If the checkpoint is complete: --hf-overrides.num_hidden_layers {self.num_layers}."
            )
        return (
            f"{ref} has no tensor '{first}'{more}, which a {spec.family} model of {wanted} layers needs; the checkpoint is "
            "incomplete."
        )

    def _misshapen(self, ref: str) -> str:
        first = self.misshapen[0]
        more = _more(len(self.misshapen) - 1)
        return (
            f"Tensor '{first.name}' of {ref} has shape {list(first.shape)}; the configuration says {list(first.expected)}"
            f"{more}. The checkpoint and its configuration do not belong together."
        )

    def _unread(self, ref: str, spec: DecoderSpec) -> str:
        names = self.unread
        shown = ", ".join(names[:3]) + _more(len(names) - 3)
        told = len(spec.blocks)
        layers = f"The configuration says {told} layers, the tensors are of {self.num_layers}. "
        return (
            f"{ref} has tensors that a {spec.family} model does not read ({shown}), so the results could be wrong. "
            f"{layers if self.num_layers > told else ''}If they do not matter, name them: "
            f'--hf-overrides \'{{"ignored_tensors": ["{names[0]}"]}}\' (`*` stands for anything).'
        )


def check_tensors(manifest: CheckpointManifest, spec: DecoderSpec, plan: Plan | None) -> TensorCheck:
    """Compare a checkpoint with the shape of the whole model.

    manifest: tensors under canonical names.
    plan: plan of the quantization method, None without one.
    """
    there = manifest.tensors
    shapes = spec.tensor_shapes()
    wanted = tensors_read(spec, plan)
    missing: list[str] = []
    misshapen: list[Misshapen] = []
    for name in wanted:
        info = there.get(name)
        expected = shapes.get(name)
        if info is None:
            missing.append(name)
        elif info.dtype in PACKED:
            continue
        elif expected is not None and tuple(info.shape) != tuple(expected):
            misshapen.append(Misshapen(name, tuple(info.shape), tuple(expected)))
    known = set(wanted)
    if spec.tied:
        known.add(OWN_HEAD)
    unread = [name for name in there if name not in known and not is_kv_scale(name)]
    return TensorCheck(tuple(missing), tuple(misshapen), tuple(unread), layers_of(there))


def tensors_read(spec: DecoderSpec, plan: Plan | None) -> list[str]:
    """Return the names of all tensors that the model reads, in its own order."""
    planned: dict[str, Sequence[str]] = {}
    if plan is not None:
        for part in spec.linears():
            answer = plan(part)
            if not isinstance(answer, Unsupported):
                planned[f"{part.name}.weight"] = answer.reads
    names: dict[str, None] = {}  # a dict as a set that keeps the order
    for name in spec.tensor_shapes():
        names.update(dict.fromkeys(planned.get(name, (name,))))
    return list(names)


def layers_of(names: Iterable[str]) -> int:
    """Return the largest number of a layer in canonical names, plus one."""
    most = 0
    for name in names:
        found = _LAYER.search(name)
        if found is not None:
            most = max(most, int(found[1]) + 1)
    return most


def _more(count: int) -> str:
    return f" (and {count} more)" if count > 0 else ""
