"""The mapping of a file's tensors to canonical ones: names, shapes, experts in stacks, and parts of fused matrices.

Owns: the assignment of the file's bytes to canonical tensors. Never does: read weights; accept a tensor with an unknown
name. Called by: the GGUF loader.

A canonical tensor is a whole tensor of the file, some of its rows (`source` then ends in `[first:last]`), or several of
one type concatenated (`source` then contains ` + `).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from core.api.errors import CheckpointError, nearest
from core_loaders.gguf.names import IN_LAYER, STATIC_SCALE, Names, canonical_name, known_names
from core_loaders.gguf.reader import GGUFTensor
from core_runtime.specs.checkpoint import TensorInfo

FUSED: Final = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.shared_experts.gate_up_proj": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
}
"""Matrices that files may store whole or in parts, independently of the model's form."""
HALVES: Final = ("self_attn.k_b_proj", "self_attn.v_b_proj")
UNFOLDED: Final = "self_attn.kv_b_proj"
"""Latent attention's matrix, which files store in halves, with the keys' half transposed."""
FLOATS: Final = ("F32", "F16", "BF16", "F64")
JOINT: Final = " + "
Shapes = Mapping[str, tuple[int, ...]]


class Piece(NamedTuple):
    """Rows of a tensor in a file. rows: all rows of its matrices, stacked. file: index within a split model."""

    tensor: GGUFTensor
    first: int
    last: int
    rows: int
    file: int = 0

    @property
    def source(self) -> str:
        """Return the `source` string described in the module's docstring."""
        is_whole = self.last - self.first == self.rows
        return self.tensor.name if is_whole else f"{self.tensor.name}[{self.first}:{self.last}]"

    @property
    def offset(self) -> int:
        """Return the offset from the start of the file in bytes."""
        return self.tensor.offset + self.first * (self.tensor.nbytes // self.rows)

    @property
    def nbytes(self) -> int:
        """Return the size in the file in bytes."""
        return (self.last - self.first) * (self.tensor.nbytes // self.rows)


def whole(tensor: GGUFTensor, file: int) -> Piece:
    """Return a piece with all rows of a tensor."""
    rows = math.prod(tensor.shape[:-1])
    return Piece(tensor, 0, rows, rows, file)


def _column(tensor: GGUFTensor) -> GGUFTensor:
    """Return a vector as a column, whose numbers are rows."""
    return tensor._replace(shape=(*tensor.shape, 1))


class Placement:
    """The canonical tensors of one model.

    path: of the file, for errors.
    prefix: name of the architecture.
    own: its tensor names, which override the common ones.
    shapes: of the tensors that the configuration implies, by canonical name.
    num_layers: declared number of layers; if `drafting` is set, that many layers after them draft tokens.
    """

    def __init__(self, path: str, prefix: str, own: Names, shapes: Shapes, num_layers: int, drafting: int = 0) -> None:
        self.path = path
        self.prefix = prefix
        self.own = own
        self.shapes = shapes
        self.num_layers = num_layers
        self.drafting = drafting
        self._pieces: dict[str, list[Piece]] = {}

    def run(self, parts: Sequence[Sequence[GGUFTensor]]) -> dict[str, TensorInfo]:
        """Return every canonical tensor, in file order. parts: the tensors of each file. Raises CheckpointError."""
        for file, tensors in enumerate(parts):
            for tensor in tensors:
                self._place(tensor, file)
        for whole, several in FUSED.items():
            for layer in range(self.num_layers):
                self._fuse(f"model.layers.{layer}.", whole, several)
        for layer in range(self.num_layers):
            self._unfold(f"model.layers.{layer}.")
        found = {name: self._info(name, pieces) for name, pieces in self._pieces.items()}
        for name in self.shapes:
            if name not in found:
                raise CheckpointError(
                    f"{self.path}: no tensor for '{name}', though {self.num_layers} layers are announced. The file is "
                    "incomplete."
                )
        return found

    def _place(self, tensor: GGUFTensor, file: int) -> None:
        """Place a tensor under its canonical name; each expert of a stack under its own."""
        if tensor.name.startswith("rope_") or tensor.name.endswith((".rope_freqs.weight", ".attn_rot_embd")):
            return  # part of the configuration, or computed from it
        if tensor.name.endswith(STATIC_SCALE):
            return
        name = self._name_of(tensor.name)
        if name is None:
            return
        _check_type(self.path, tensor)
        if ".*." not in name:
            self._put(name, whole(tensor, file))
            return
        count = tensor.shape[0]
        stack = whole(tensor if len(tensor.shape) > 1 else _column(tensor), file)
        size = stack.rows // count
        for expert in range(count):
            first = expert * size
            self._put_expert(name.replace("*", str(expert)), stack._replace(first=first, last=first + size))

    def _put_expert(self, name: str, piece: Piece) -> None:
        """Place an expert's matrix; where gate and up are joined, the gate's rows come first."""
        if "gate_up_proj" not in name:
            self._put(name, piece)
            return
        half = (piece.first + piece.last) // 2
        self._put(name.replace("gate_up_proj", "gate_proj"), piece._replace(last=half))
        self._put(name.replace("gate_up_proj", "up_proj"), piece._replace(first=half))

    def _put(self, name: str, piece: Piece) -> None:
        if name in self._pieces:
            other = self._pieces[name][0].tensor.name
            raise CheckpointError(
                f"{self.path}: tensors '{other}' and '{piece.tensor.name}' are both '{name}'. The file is damaged."
            )
        self._pieces[name] = [piece]

    def _name_of(self, name: str) -> str | None:
        """Return the canonical name; None for a tensor of a draft layer. Raises CheckpointError for an unknown name."""
        layer = IN_LAYER.fullmatch(name)
        if layer is not None and int(layer[1]) >= self.num_layers:
            if int(layer[1]) < self.num_layers + self.drafting:
                return None
            raise CheckpointError(
                f"{self.path}: tensor '{name}' lies beyond the {self.num_layers} layers that {self.prefix}.block_count "
                "announces."
            )
        canonical = canonical_name(name, self.own)
        if canonical is None:
            short = layer[2] if layer is not None else name
            hint = nearest(short, known_names(self.own))
            raise CheckpointError(f"{self.path}: tensor '{name}' is unknown in architecture '{self.prefix}'.{hint}")
        return canonical

    def _fuse(self, layer: str, whole: str, several: tuple[str, ...]) -> None:
        """Convert a matrix from the file's form (whole or in parts) to the model's."""
        for ending in (".weight", ".bias"):
            name = f"{layer}{whole}{ending}"
            names = [f"{layer}{one}{ending}" for one in several]
            if name in self.shapes and name not in self._pieces:
                present = [one for one in names if one in self._pieces]
                if present:  # gate and up joined have the name of up
                    self._pieces[name] = [self._pieces.pop(one)[0] for one in present]
            elif name in self._pieces and name not in self.shapes and names[0] in self.shapes:
                self._split(name, names)

    def _split(self, name: str, names: list[str]) -> None:
        (piece,) = self._pieces.pop(name)
        if len(piece.tensor.shape) == 1:
            piece = whole(_column(piece.tensor), piece.file)
        first = 0
        for one in names:
            size = self.shapes[one][0]
            self._put(one, piece._replace(first=first, last=first + size))
            first += size
        if first != piece.rows:
            raise CheckpointError(
                f"{self.path}: tensor '{piece.tensor.name}' has {piece.rows} rows; the configuration implies {first}."
            )

    def _unfold(self, layer: str) -> None:
        halves = [f"{layer}{half}.weight" for half in HALVES]
        if all(half in self._pieces for half in halves):
            self._put_both(f"{layer}{UNFOLDED}.weight", halves)

    def _put_both(self, name: str, halves: list[str]) -> None:
        self._pieces[name] = [self._pieces.pop(half)[0] for half in halves]

    def _info(self, name: str, pieces: list[Piece]) -> TensorInfo:
        """Describe a canonical tensor. Raises CheckpointError when its shape differs from the configuration's."""
        first = pieces[0]
        expected = self.shapes.get(name)
        source = JOINT.join(piece.source for piece in pieces)
        shape = _shape_of(pieces)
        dtype = first.tensor.type.name
        if name.endswith(f"{UNFOLDED}.weight") and len(pieces) == 2:
            dtype = "F32"  # the transposed half is unpacked to be turned
            shape = expected or shape
        elif any(piece.tensor.type != first.tensor.type for piece in pieces):
            kinds = " and ".join(piece.tensor.type.name for piece in pieces)
            raise CheckpointError(
                f"{self.path}: tensors '{source}' are one matrix of the model, but of types {kinds}; expected one type. "
                "Use the model's safetensors checkpoint."
            )
        if expected is not None and _squeezed(shape) != _squeezed(expected) and not _flattens(shape, expected):
            raise CheckpointError(
                f"{self.path}: tensor '{source}' has shape {shape}; the configuration implies {expected}."
            )
        nbytes = sum(piece.nbytes for piece in pieces)
        return TensorInfo(name, expected or shape, dtype, nbytes, first.file, first.offset, source)


def _shape_of(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Return the shape of the canonical tensor."""
    tensor = pieces[0].tensor
    if len(pieces) == 1 and pieces[0].last - pieces[0].first == pieces[0].rows:
        return tensor.shape
    rows = sum(piece.last - piece.first for piece in pieces)
    if len(tensor.shape) == 1:
        return (sum(piece.tensor.shape[0] for piece in pieces),)
    return (rows, tensor.shape[-1])


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape without dimensions of 1, which formats add or drop."""
    return tuple(extent for extent in shape if extent != 1)


def _flattens(shape: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether a vector is stored as a matrix (norms of groups)."""
    return len(_squeezed(expected)) == 1 and math.prod(shape) == math.prod(expected)


def _check_type(path: str, tensor: GGUFTensor) -> None:
    """Check the types: norms and biases must be floats, and no matrix may be of integers. Raises CheckpointError."""
    name = tensor.type.name
    if name in FLOATS or (tensor.type.packed and len(tensor.shape) > 1):
        return
    raise CheckpointError(
        f"{path}: tensor '{tensor.name}' is of type {name}; expected floating-point numbers or, for a matrix, a quantized "
        "type. The file is damaged."
    )
