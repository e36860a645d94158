"""The choice of a layout for each module of compressed-tensors.

Owns: the choice by scheme and tensors. Never does: unpack. Torch-free. Called by: the manifest.
"""

from __future__ import annotations

from typing import Final

from core.api.specs import Unsupported
from core_quantization.compressed.declaration import Declared, Group, Numbers
from core_quantization.compressed.inputs import input_scheme
from core_quantization.compressed.integers import PackedIntegers, PlainIntegers
from core_quantization.compressed.rotates import PlainMatrix, Rotates
from core_quantization.compressed.sparse import SparseLayout
from core_quantization.declared.floats import DeclaredFloat4, DeclaredFloat8
from core_quantization.declared.inputs import InputScheme, none_declared, rounds_inputs
from core_quantization.declared.layout import Layout
from core_quantization.declared.method import PLAIN
from core_quantization.declared.part import StoredPart
from core_quantization.declared.part_format import Run
from core_quantization.declared.patterns import REGEX, any_means
from core_quantization.tiles.layout import COMPRESSED_NAMES, Tiled

CLASSES: Final = {
    "linear": ("Linear",),
    "head": ("Linear", "ParallelLMHead"),
    "embedding": ("Embedding", "VocabParallelEmbedding"),
}
"""Role → classes of its modules; unlisted roles are linear."""
KNOWN_CLASSES: Final = frozenset[str]().union(*CLASSES.values())


class Choice:
    """The layouts of one checkpoint.

    declared: its declaration.
    run: settings of all packed layers.
    Raises Refusal for inputs that cannot be rounded as declared, UserError where none are.
    """

    def __init__(self, declared: Declared, run: Run) -> None:
        groups, self._transforms = declared
        self._groups = groups
        self._run = run.of_matrices
        self._inputs: dict[str, InputScheme | None] | None = None
        if run.declared:
            self._inputs = {
                group.where: input_scheme(f"{group.where}.input_activations", group.inputs, group.form)
                for group in groups
            }
            if not any(self._inputs.values()):
                raise none_declared("compressed-tensors")
        self._named: dict[str, Group] = {}
        for group in groups:
            for target in group.targets:
                self._named.setdefault(target, group)

    def __call__(self, part: StoredPart) -> Layout | Unsupported | None:
        """Choose a layout, see `Choose` of the method."""
        layout = self._without_transforms(part)
        classes = CLASSES.get(part.role, CLASSES["linear"])
        around = [transform for transform in self._transforms if transform.means(part, classes)]
        if not around or isinstance(layout, Unsupported) or part.role == "embedding":
            return layout
        return Rotates(layout or PlainMatrix(self._run), around)

    def _without_transforms(self, part: StoredPart) -> Layout | Unsupported | None:
        """Return the layout of a part's matrix and the rounding of its inputs."""
        there = part.tensors
        is_sparse = "bitmask" in there
        weight = there.get("weight")
        is_plain = weight is not None and weight.dtype in PLAIN
        if is_plain and "weight_scale" in there:
            return Unsupported(
                f"its tensor '{part.own_name}.weight' is plain and has a scale: the model was saved before it was "
                "compressed; save it again with save_compressed=True"
            )
        if is_plain or not there:
            return self._plain(part) if is_plain else None
        if is_sparse and "weight_scale" not in there:
            return SparseLayout(self._run, None)
        group = self._group(part)
        if group is None:
            return Unsupported(f"module '{part.own_name}' is packed, but no group of config_groups means it")
        if group.numbers is None:
            return Unsupported(f"module '{part.own_name}' is packed, but its group of config_groups has no weights")
        inner = self._layout(part, group.numbers)
        whole = SparseLayout(self._run, inner) if is_sparse else inner
        return whole if self._inputs is None else rounds_inputs(whole, self._inputs[group.where], part)

    def _plain(self, part: StoredPart) -> Unsupported | None:
        """Return None for a plain part, or why its inputs cannot be rounded as declared."""
        group = None if self._inputs is None or part.role == "embedding" else self._group(part)
        if self._inputs is None or group is None or group.numbers is not None or self._inputs[group.where] is None:
            return None
        return Unsupported(
            f"module '{part.own_name}' has plain weights and declares a rounding of its inputs, which is served for packed "
            "weights; leave --quantization-config.activation out"
        )

    def _layout(self, part: StoredPart, numbers: Numbers) -> Layout:
        if numbers.kind == "float":
            if numbers.bits == 8:
                return DeclaredFloat8(numbers.shares, self._run)
            return DeclaredFloat4("weight_packed", numbers.shares.group_size, self._run)
        if COMPRESSED_NAMES[1] in part.tensors:
            size = numbers.shares.group_size if numbers.shares.by == "group" else -1
            return Tiled(self._run, numbers.bits, size, "sparse", COMPRESSED_NAMES)
        packed = "weight_packed" in part.tensors
        return PackedIntegers(numbers, self._run) if packed else PlainIntegers(numbers, self._run)

    def _group(self, part: StoredPart) -> Group | None:
        """Return a group that names the module, else one that names its class, else one of classes that are unknown
        here.
        """
        named = self._named.get(part.own_name)
        if named is not None:  # some declarations list every module of a large model
            return named
        by_class: list[Group] = []
        strange: list[Group] = []
        mine = CLASSES.get(part.role, CLASSES["linear"])
        for group in self._groups:
            classes = {target for target in group.targets if _is_class(target)}
            names = [target for target in group.targets if target not in classes]
            if any_means(part.own_name, names):
                return group
            if not classes.isdisjoint(mine):
                by_class.append(group)
            elif classes and classes.isdisjoint(KNOWN_CLASSES):
                strange.append(group)
        return next(iter((*by_class, *strange)), None)


def _is_class(target: str) -> bool:
    """Whether a target is the name of a class, such as `Linear` or `MoEGate`."""
    return not target.startswith(REGEX) and target.isidentifier() and target[0].isupper()
