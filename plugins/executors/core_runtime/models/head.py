"""The output layer of a decoder: from rows of the residual stream to logits.

Owns: the order of its operations and its buffers. Never does: sample. Called by: the decoder, once a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core_runtime.contracts import Communicator, LinearKernel
from core_runtime.layers.adapted_tokens import HeadAdapters
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.workspace import Workspace
from core_runtime.models.norm import Norm
from core_runtime.specs.decoder_spec import DecoderSpec


@dataclass(slots=True)
class HeadWeights:
    """The prepared weights of a head.

    norm: norm before the head, or None.
    project: projection from the hidden size to the embeddings' size, or None.
    tokens: the matrix, one row a token; None for a model whose result is the hidden state.
    bias: float32 [V], added to the logits of a tied head, or None; an untied head has its bias in `tokens`.
    token_ids: int64 [rows of `tokens`], the token of each row of a smaller head; None: row i is token i.
    """

    norm: Norm | None
    project: LinearKernel | None
    tokens: LinearKernel | None
    bias: Tensor | None = None
    token_ids: Tensor | None = None


class Head:
    """The output head of a model, or of the part of its vocabulary that a rank holds.

    max_rows: limit of rows in one call.
    adapters: adapters of the matrix; None: the engine has none.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: HeadWeights,
        kernels: KernelSet,
        workspace: Workspace,
        dtype: torch.dtype,
        max_rows: int,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._kernels = kernels
        self._workspace = workspace
        self.adapters: HeadAdapters | None = None
        self._communicator: Communicator | None = None
        workspace.reserve("last", max_rows, spec.hidden_size, dtype)
        if weights.project is not None:
            workspace.reserve("projected", max_rows, weights.project.shape[0], dtype)
        if weights.tokens is not None:
            workspace.reserve("logits", max_rows, spec.head_size or spec.vocab_size, torch.float32)

    @property
    def linears(self) -> list[LinearKernel]:
        """Return all kernels that a runtime must be able to record."""
        kernels = (self._weights.project, self._weights.tokens)
        return [kernel for kernel in kernels if kernel is not None]

    @property
    def is_plain(self) -> bool:
        """Whether the head consists of kernels alone."""
        recordable = self._communicator is None or self._communicator.capturable
        return self._weights.bias is None and recordable

    def join(self, communicator: Communicator, vocab_size: int) -> None:
        """Gather the logits of all parts of the vocabulary on rank 0; the other ranks' are undefined. Called once.

        vocab_size: tokens of the whole vocabulary.
        """
        self._communicator = communicator
        max_rows = self._workspace.buffer("logits").shape[0]
        self._workspace.reserve("all logits", max_rows, vocab_size, torch.float32)

    def hidden(self, rows: Tensor) -> Tensor:
        """Return the rows `rows` (int64 [R]) of the latest residual stream after the final norm, [R, H], valid until
        the next call.
        """
        last = self._workspace.view("last", rows.shape[0])
        residual = self._workspace.buffer("residual")
        if self._weights.norm is None:
            self._kernels.take_rows(residual, rows, last)
        else:
            self._weights.norm.of_rows(residual, rows, last)
        return last

    def __call__(self, rows: Tensor) -> Tensor:
        """Return float32 logits [R, V] of the rows `rows`, valid until the next call."""
        assert self._weights.tokens is not None, "this model has no output head"
        last = self.hidden(rows)
        count = rows.shape[0]
        if self._weights.project is not None:
            projected = self._workspace.view("projected", count)
            self._weights.project(last, projected)
            last = projected
        out = self._workspace.view("logits", count)
        if self.adapters is not None and self.adapters.active:
            self.adapters.run(self._weights.tokens, last, rows, out)
        else:
            self._weights.tokens(last, out)
        if self._weights.bias is not None:
            out += self._weights.bias
        if self._spec.logit_scale != 1.0:
            self._kernels.scale(out, self._spec.logit_scale)
        if self._spec.logit_cap is not None:
            self._kernels.soft_cap(out, self._spec.logit_cap)
        if self._communicator is None:
            return out
        whole = self.view(count)
        self._communicator.all_gather(out, whole, self._spec.vocab_start, 0)
        return whole

    def view(self, count: int) -> Tensor:
        """Return the buffer of the logits, [count, V]: a view of the workspace, valid until the next call."""
        return self._workspace.view("logits" if self._communicator is None else "all logits", count)
