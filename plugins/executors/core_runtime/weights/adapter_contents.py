"""What an adapter changes, module by module, as its files say.

Owns: `ModuleChange`, `AdapterContents`. Never does: read a file, or know a model. Called by: the formats of adapters (they
build these), `core_runtime.models.adapters` (it fits them to a model).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """The change of one module of the model; a field that is None changes nothing.

    For a matrix W [N, K]: W + scale * b @ a.

    module: name of the module as the adapter's tool sees the model, such as `model.layers.0.self_attn.q_proj`.
    a: [r, K]. b: [N, r].
    magnitude: [N], lengths of the rows of the changed matrix (DoRA, arXiv 2402.09353).
    added_bias: [N], added to the product with `b`, before the scale.
    bias: [N], replaces the module's bias.
    weight: replaces the module's weight.
    tokens: ids int64 [n] and rows [n, H], which replace rows of an embedding.
    paired: whether the rows of each head in `b` are in the order of rotary pairs (2i, 2i + 1), as in GGUF files.
    parted: whether the rows of queries, keys and values in `b` follow one another part by part, as in GGUF files, where the
        checkpoint of the family has them group by group.

    Of a parameter with all experts, such as `model.layers.0.mlp.experts.gate_up_proj`, a is [experts * r, K], expert by
    expert, and b is [N, r * experts], rank by rank.
    Of an embedding [V, E], a is [r, V] and b is [E, r]: the row of a token changes by scale * b @ a[:, token].
    """

    module: str
    a: Tensor | None = None
    b: Tensor | None = None
    scale: float = 1.0
    magnitude: Tensor | None = None
    added_bias: Tensor | None = None
    bias: Tensor | None = None
    weight: Tensor | None = None
    tokens: tuple[Tensor, Tensor] | None = None
    paired: bool = False
    parted: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are there, by the names that messages use."""
        named = {
            "A": self.a,
            "B": self.b,
            "magnitude": self.magnitude,
            "bias of B": self.added_bias,
            "bias": self.bias,
            "weight": self.weight,
            "rows of tokens": None if self.tokens is None else self.tokens[1],
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}


@dataclass(frozen=True, slots=True)
class AdapterContents:
    """An adapter as its files describe it.

    digest: sha256 of configuration and tensors, in hexadecimal digits.
    changes: at most one for each module.
    invocation_tokens: see `AdapterFacts`.
    ties: whether a head that is tied to the embedding is changed like it.
    """

    digest: str
    changes: tuple[ModuleChange, ...]
    invocation_tokens: tuple[int, ...] = ()
    ties: bool = False
