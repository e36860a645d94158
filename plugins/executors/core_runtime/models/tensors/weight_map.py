"""A checkpoint's tensors under canonical names, in canonical layouts.

Owns: the translation of a row's rules to names and views, and reading through them. Never does: know a family or a file
format.
Called by: the configuration (names and shapes), the model's instance (reading).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from core.api.errors import CheckpointError
from core_runtime.contracts import Loader, keeps_tensors
from core_runtime.models.weight_rules import (
    PADDED,
    USUALLY_IGNORED,
    Copied,
    Cut,
    Ignored,
    Joined,
    Rename,
    Stacked,
    Turned,
    UnitRows,
    WeightRule,
)
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("F64", "F32", "F16", "BF16")


class TensorView(msgspec.Struct, frozen=True):
    """A part of a checkpoint's tensor.

    source: its name in the manifest before the map.
    expert: index of the expert, and number of experts in the stack; None: the tensor is not a stack.
    piece: index of the piece of the rows, and number of pieces.
    run: see `Cut`.
    rows: first row, and the one after the last; None: all.
    """

    source: str
    expert: tuple[int, int] | None = None
    piece: tuple[int, int] = (0, 1)
    run: int = 0
    alternating: bool = False
    transposed: bool = False
    flat: bool = False
    unit_rows: bool = False
    rows: tuple[int, int] | None = None

    def of(self, tensor: Tensor) -> Tensor:
        """Return the part, as a view where possible."""
        if self.unit_rows:
            lengths = tensor.float().norm(dim=-1, keepdim=True)
            return (tensor / lengths.clamp(min=1e-12)).to(tensor.dtype)
        if self.rows is not None:
            return tensor[slice(*self.rows)]
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
        if self.run:
            return tensor.unflatten(0, (-1, pieces, self.run))[:, number].flatten(0, 1)
        return tensor.chunk(pieces)[number]


class WeightMap:
    """The map of one checkpoint.

    manifest: the checkpoint's tensors under canonical names, without the ignored ones.
    ignored: name → reason.
    """

    def __init__(
        self,
        manifest: CheckpointManifest,
        rules: Sequence[WeightRule],
        num_experts: int,
        shapes: Mapping[str, Sequence[int]] | None = None,
        canonical_name: Callable[[str], str] | None = None,
        settled: Mapping[str, str] | None = None,
    ) -> None:
        """Build the map.

        num_experts: number of experts in flat stacks, where no shape gives it.
        shapes: shapes of canonical tensors, for stacks of either layout.
        canonical_name: function that replaces the rules that rename.
        settled: names in the checkpoint that no rule is about → their canonical names.
        """
        self._original = manifest
        self._views: dict[str, TensorView] = {}
        self._rows: dict[str, dict[int, str]] = {}
        self._num_experts = num_experts
        self._shapes = shapes or {}
        self._canonical_name = canonical_name
        self._renames = [(re.compile(rule.pattern), rule.to) for rule in rules if isinstance(rule, Rename)]
        self._joining = [rule for rule in rules if isinstance(rule, Joined)]
        self._shaping = [rule for rule in rules if isinstance(rule, Stacked | Cut | Copied | Turned | UnitRows)]
        self._ignoring = [rule for rule in (*rules, *USUALLY_IGNORED) if isinstance(rule, Ignored)]
        self.ignored: dict[str, str] = {}
        tensors: dict[str, TensorInfo] = {}
        known = settled or {}
        for source, info in manifest.tensors.items():
            if source in known:
                self._put(tensors, known[source], TensorView(source), info)
            else:
                self._take(tensors, source, info)
        for joined, sources in self._rows.items():
            tensors[joined] = self._joined(joined, sources)
        self.manifest = msgspec.structs.replace(manifest, tensors=tensors)

    def _take(self, tensors: dict[str, TensorInfo], source: str, info: TensorInfo) -> None:
        """Add a tensor of the checkpoint where the rules put it, or record why it is ignored."""
        name = source if self._canonical_name is None else self._canonical_name(source)
        for pattern, to in self._renames:
            name = pattern.sub(to, name)
        why = _why_ignored(self._ignoring, source, name)
        if why is not None:
            self.ignored[source] = why
        elif not self._join(name, source):
            for part, view in self._views_of(source, name, info):
                self._put(tensors, part, view, info)

    def loader(self, inner: Loader) -> Loader:
        """Return a loader that reads canonical tensors with the checkpoint's own loader."""
        unchanged = all(view == TensorView(name) for name, view in self._views.items())
        if unchanged and not self._rows:
            return inner
        return MappedLoader(inner, self._original, self.manifest, self._views, self._rows)

    @property
    def views(self) -> Mapping[str, TensorView]:
        """The part of a tensor that each canonical tensor is, except tensors that are made of several."""
        return self._views

    @property
    def sources(self) -> dict[str, str]:
        """The checkpoint's name of each canonical tensor, except tensors that are made of several."""
        return {name: view.source for name, view in self._views.items()}

    def made_of(self, sources: Set[str]) -> set[str]:
        """Return the canonical tensors that contain any of these tensors of the checkpoint."""
        found = {name for name, view in self._views.items() if view.source in sources}
        for joined, numbered in self._rows.items():
            if not sources.isdisjoint(numbered.values()):
                found.add(joined)
        return found

    def _join(self, name: str, source: str) -> bool:
        """Whether a tensor is one of several that become one. If so, it is recorded."""
        for rule in self._joining:
            found = re.fullmatch(rule.pattern, name)
            if found is not None:
                self._rows.setdefault(found.expand(rule.to), {})[int(found["number"])] = source
                return True
        return False

    def _joined(self, name: str, sources: dict[int, str]) -> TensorInfo:
        """Return the one tensor that others become. sources: names by number."""
        infos = [self._original.tensors[sources[number]] for number in sorted(sources)]
        first = infos[0]
        alike = all(info.shape == first.shape and info.dtype == first.dtype for info in infos)
        if not alike or sorted(sources) != list(range(len(sources))):
            shown = ", ".join(sources[number] for number in sorted(sources))
            raise CheckpointError(
                f"{self._original.ref}: {shown} are to be one tensor, '{name}'; expected tensors of one shape and type "
                "whose numbers have no gap. The checkpoint is damaged."
            )
        count = len(infos)
        return msgspec.structs.replace(first, name=name, shape=(count, *first.shape), nbytes=count * first.nbytes)

    def _put(self, tensors: dict[str, TensorInfo], name: str, view: TensorView, info: TensorInfo) -> None:
        if name in tensors:
            raise CheckpointError(
                f"{self._original.ref}: both '{self._views[name].source}' and '{view.source}' are '{name}' to its family; "
                "the checkpoint is damaged."
            )
        self._views[name] = view
        shape = _shape(view, info.shape)
        nbytes = info.nbytes * math.prod(shape) // max(math.prod(info.shape), 1)
        tensors[name] = msgspec.structs.replace(info, name=name, shape=shape, nbytes=nbytes)

    def _views_of(self, source: str, name: str, info: TensorInfo) -> Iterator[tuple[str, TensorView]]:
        """Yield the canonical tensors that one tensor of the checkpoint contains."""
        for rule in self._shaping:
            found = re.fullmatch(rule.pattern, name)
            # Packed stacks may lie the other way round than those of floating-point numbers, so each has rules of its own.
            packed = isinstance(rule, Stacked) and rule.packed
            wrong_kind = (info.dtype in FLOATS) is packed and not isinstance(rule, Copied)
            if found is None or wrong_kind:
                continue
            if isinstance(rule, Copied):
                for place in (name, *map(found.expand, rule.to)):
                    yield place, TensorView(source)
            elif isinstance(rule, Turned):
                yield name, TensorView(source, transposed=True)
            elif isinstance(rule, UnitRows):
                yield name, TensorView(source, unit_rows=True)
            elif isinstance(rule, Cut) and rule.rows:
                for piece, rows in zip(rule.pieces, self._rows_of(source, info, rule), strict=True):
                    yield found.expand(rule.to).replace("{piece}", piece), TensorView(source, rows=rows)
            elif isinstance(rule, Cut):
                for number, piece in enumerate(rule.pieces):
                    part = found.expand(rule.to).replace("{piece}", piece)
                    yield part, TensorView(source, piece=(number, len(rule.pieces)), run=rule.run)
            else:
                yield from self._stack(source, found, info, rule)
            return
        yield name, TensorView(source)

    def _rows_of(self, source: str, info: TensorInfo, rule: Cut) -> Iterator[tuple[int, int]]:
        """Yield the rows of each piece of a tensor. Raises CheckpointError for a tensor with other rows."""
        total = sum(rule.rows)
        if info.shape[0] not in (total, -(-total // PADDED) * PADDED):
            raise CheckpointError(
                f"{self._original.ref}: '{source}' has {info.shape[0]} rows, expected {' + '.join(map(str, rule.rows))} of "
                f"{', '.join(rule.pieces)}; the file belongs to another configuration or number of ranks."
            )
        ends = list(accumulate(rule.rows))
        yield from zip([0, *ends], ends, strict=False)

    def _stack(
        self, source: str, found: re.Match[str], info: TensorInfo, rule: Stacked
    ) -> Iterator[tuple[str, TensorView]]:
        count = self._num_experts if rule.flat else info.shape[0]
        template = found.expand(rule.to)
        transposed = rule.transposed
        # Both layouts are published under the same names; the expected shape tells them apart.
        if transposed is None:
            first = template.replace("{expert}", "0").replace("{piece}", rule.pieces[0])
            transposed = first in self._shapes and info.shape[-1] != self._shapes[first][-1]
        transposed = transposed and (rule.flat or len(info.shape) > 2)
        num_pieces = len(rule.pieces)
        for expert in range(count):
            for number, piece in enumerate(rule.pieces):
                name = template.replace("{expert}", str(expert)).replace("{piece}", piece)
                place = (number, num_pieces)
                yield (
                    name,
                    TensorView(
                        source,
                        (expert, count),
                        place,
                        alternating=rule.alternating,
                        transposed=transposed,
                        flat=rule.flat,
                    ),
                )


class MappedLoader:
    """A loader whose tensors pass through the views of a map; each tensor of the checkpoint is read once."""

    def __init__(
        self,
        inner: Loader,
        original: CheckpointManifest,
        manifest: CheckpointManifest,
        views: dict[str, TensorView],
        rows: dict[str, dict[int, str]],
    ) -> None:
        """Wrap a loader. rows: name of a joined tensor → its sources by number."""
        self._inner = inner
        self._original = original
        self._manifest = manifest
        self._views = views
        self._rows = rows
        self.keeps_tensors = keeps_tensors(inner)

    def resolve(self, ref: str) -> CheckpointManifest:
        """Return the manifest under canonical names."""
        return self._manifest

    def iter(self, manifest: CheckpointManifest, reads: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors as every loader does; parts of one tensor follow one another."""
        wanted: dict[str, list[str]] = {}
        places: dict[str, tuple[str, int]] = {}
        for name in reads:
            if name not in self._rows:
                wanted.setdefault(self._views[name].source, []).append(name)
                continue
            for number, source in self._rows[name].items():
                places[source] = name, number
        begun: dict[str, Tensor] = {}
        left = {name: len(sources) for name, sources in self._rows.items()}
        for source, tensor in self._inner.iter(self._original, [*wanted, *places]):
            for name in wanted.get(source, ()):
                yield name, self._views[name].of(tensor)
            if source not in places:
                continue
            name, number = places[source]
            if name not in begun:
                begun[name] = tensor.new_empty((left[name], *tensor.shape))
            begun[name][number] = tensor
            left[name] -= 1
            if not left[name]:
                yield name, begun.pop(name)


def _why_ignored(rules: Sequence[Ignored], source: str, name: str) -> str | None:
    """Return the reason why a tensor is ignored, None when it is read. name: name after renames."""
    for rule in rules:
        if re.fullmatch(rule.pattern, source):
            return rule.reason
        if rule.renamed and re.fullmatch(rule.pattern, name):
            return rule.reason
    return None


def _shape(view: TensorView, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a part, from the shape of its tensor."""
    sizes = list(shape)
    if view.rows is not None:
        return (view.rows[1] - view.rows[0], *sizes[1:])
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
