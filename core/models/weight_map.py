"""A checkpoint's tensors under canonical names, in canonical layouts.

Owns: the way from a row's rules to names and views, and reading through them. Never does: know a family or a file format.
Called by: the configuration (names and shapes), the model's instance (reading).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from core.api.checkpoint import CheckpointManifest, TensorInfo
from core.api.errors import CheckpointError
from core.models.weight_rules import (
    USUALLY_IGNORED,
    Ignored,
    Rename,
    Stacked,
    Turned,
    WeightRule,
)
from core.plugin.contracts import Loader

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("F64", "F32", "F16", "BF16")


class TensorView(msgspec.Struct, frozen=True):
    """A part of a checkpoint's tensor.

    source: its name in the manifest before the map.
    expert: of the stack, and how many there are; None: it is no stack.
    piece: which of how many parts of the rows.
    """

    source: str
    expert: tuple[int, int] | None = None
    piece: tuple[int, int] = (0, 1)
    alternating: bool = False
    transposed: bool = False
    flat: bool = False

    def of(self, tensor: Tensor) -> Tensor:
        """The part, a view where that can be."""
        if self.expert is not None:
            index, count = self.expert
            tensor = tensor.unflatten(0, (count, -1))[index] if self.flat else tensor[index]
        if self.transposed:
            tensor = tensor.transpose(-1, -2)
        number, pieces = self.piece
        if pieces == 1:
            return tensor
        if self.alternating:
            return tensor[number::pieces]
        return tensor.chunk(pieces)[number]


class WeightMap:
    """The map of one checkpoint.

    manifest: its tensors under canonical names; what is ignored is not there.
    ignored: name → reason.
    """

    def __init__(
        self,
        manifest: CheckpointManifest,
        rules: Sequence[WeightRule],
        num_experts: int,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """num_experts: in flat stacks, where no shape tells it. shapes: of canonical tensors, for stacks of either layout."""
        self._original = manifest
        self._views: dict[str, TensorView] = {}
        self._num_experts = num_experts
        self._shapes = shapes or {}
        self.ignored: dict[str, str] = {}
        renames = [(re.compile(rule.pattern), rule.to) for rule in rules if isinstance(rule, Rename)]
        shaping = [rule for rule in rules if isinstance(rule, Stacked | Turned)]
        ignoring = [rule for rule in (*rules, *USUALLY_IGNORED) if isinstance(rule, Ignored)]
        tensors: dict[str, TensorInfo] = {}
        for source, info in manifest.tensors.items():
            why = next((rule.reason for rule in ignoring if re.fullmatch(rule.pattern, source)), None)
            if why is not None:
                self.ignored[source] = why
                continue
            name = source
            for pattern, to in renames:
                name = pattern.sub(to, name)
            for canonical_name, view in self._views_of(source, name, info, shaping):
                self._put(tensors, canonical_name, view, info)
        self.manifest = msgspec.structs.replace(manifest, tensors=tensors)

    def loader(self, inner: Loader) -> Loader:
        """Reads canonical tensors with the checkpoint's own loader."""
        if all(view == TensorView(name) for name, view in self._views.items()):
            return inner
        return MappedLoader(inner, self._original, self.manifest, self._views)

    def _put(self, tensors: dict[str, TensorInfo], name: str, view: TensorView, info: TensorInfo) -> None:
        if name in tensors:
            raise CheckpointError(
                f"{self._original.ref}: both '{self._views[name].source}' and '{view.source}' are '{name}' to its family; "
                "the checkpoint is damaged."
            )
        self._views[name] = view
        tensors[name] = msgspec.structs.replace(info, name=name, shape=_shape(view, info.shape))

    def _views_of(
        self, source: str, name: str, info: TensorInfo, rules: Sequence[Stacked | Turned]
    ) -> Iterator[tuple[str, TensorView]]:
        """The canonical tensors that one tensor of the checkpoint has in it."""
        for rule in rules:
            found = re.fullmatch(rule.pattern, name)
            if found is None or info.dtype not in FLOATS:
                continue
            if isinstance(rule, Turned):
                yield name, TensorView(source, transposed=True)
            else:
                yield from self._stack(source, found, info, rule)
            return
        yield name, TensorView(source)

    def _stack(
        self, source: str, found: re.Match[str], info: TensorInfo, rule: Stacked
    ) -> Iterator[tuple[str, TensorView]]:
        count = self._num_experts if rule.flat else info.shape[0]
        template = found.expand(rule.to)
        transposed = rule.transposed
        if transposed is None:
            first = template.replace("{expert}", "0").replace("{piece}", rule.pieces[0])
            transposed = first in self._shapes and info.shape[-1] != self._shapes[first][-1]
        transposed = transposed and (rule.flat or len(info.shape) > 2)
        num_pieces = len(rule.pieces)
        for expert in range(count):
            for number, piece in enumerate(rule.pieces):
                name = template.replace("{expert}", str(expert)).replace("{piece}", piece)
                place = (number, num_pieces)
                yield name, TensorView(source, (expert, count), place, rule.alternating, transposed, rule.flat)


class MappedLoader:
    """A loader whose tensors pass through the views of a map; each tensor of the checkpoint is read once."""

    def __init__(
        self, inner: Loader, original: CheckpointManifest, manifest: CheckpointManifest, views: dict[str, TensorView]
    ) -> None:
        self._inner = inner
        self._original = original
        self._manifest = manifest
        self._views = views

    def resolve(self, ref: str) -> CheckpointManifest:
        """The manifest under canonical names."""
        return self._manifest

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """As of every loader; parts of one tensor follow one another."""
        wanted: dict[str, list[str]] = {}
        for name in reads:
            source = self._views[name].source
            wanted.setdefault(source, []).append(name)
        for source, tensor in self._inner.iter(self._original, list(wanted)):
            for name in wanted[source]:
                yield name, self._views[name].of(tensor)


def _shape(view: TensorView, shape: Sequence[int]) -> tuple[int, ...]:
    """Of a part, from the shape of its tensor."""
    sizes = list(shape)
    if view.expert is not None:
        _, count = view.expert
        if view.flat:
            sizes[0] //= count
        else:
            sizes = sizes[1:]
    if view.transposed:
        sizes[-1], sizes[-2] = sizes[-2], sizes[-1]
    _, pieces = view.piece
    if pieces > 1:
        sizes[0] //= pieces
    return tuple(sizes)
