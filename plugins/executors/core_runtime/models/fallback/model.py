"""A model of transformers that runs the engine's steps.

Owns: the run of a step's flat batch through the modules, and of its rows through the head. Never does: read weights,
choose kernels, sample. Called by: the model runner, in the same way as a `Decoder`.

All sequences of a step are one row of tokens: modules treat each token by itself, and attention belongs to the
backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from core.api.step_limits import StepLimits
from core_runtime.contracts import LinearKernel
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.workspace import Workspace
from core_runtime.models.embedding import EmbeddingWeights
from core_runtime.models.fallback.attention import PAGED, PagedCalls, PagedLayer, answer_with
from core_runtime.models.fallback.trial import body_of
from core_runtime.models.head import HeadWeights
from core_runtime.specs.module_spec import ModuleSpec


class ModuleWeights:
    """The weights of a model of transformers.

    embedding: None where transformers' own module has the matrix.
    head: the matrix alone, since the norm before it is in the body; None where transformers' own module has the matrix.
    nbytes: bytes of all weights.
    """

    def __init__(self, model: nn.Module, spec: ModuleSpec, kernels: Sequence[LinearKernel]) -> None:
        self.embedding: EmbeddingWeights | None = None
        self.head: HeadWeights | None = None
        if spec.embedding_matrix is not None:
            self.embedding = EmbeddingWeights(kernels[0])
        if spec.tied:
            self.head = HeadWeights(None, None, kernels[0])
        elif spec.head_matrix is not None:
            self.head = HeadWeights(None, None, kernels[-1])
        plain = list(model.parameters()) + list(model.buffers())
        self.nbytes = sum(kernel.nbytes for kernel in kernels) + sum(tensor.nbytes for tensor in plain)


class Resumed(nn.Module):  # type: ignore[misc]
    """A replacement for the body that returns the body's earlier output, so that the modules after it can run on chosen
    rows.

    kind: type of the body's output.
    rows: hidden states of the chosen rows, [1, R, H].
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind: Any = None
        self.rows: Tensor | None = None

    def forward(self, *_: Any, **__: Any) -> Any:
        """Return an output of transformers with the chosen rows."""
        return self.kind(last_hidden_state=self.rows)


class ModuleModel:
    """A model ready to run, once a backend is bound to each of its `mixers`. Has the interface of a `Decoder`.

    dtype: dtype of the tensors between layers.
    limits: limits of one step.
    """

    capturable = False
    capture = "never"

    def __init__(
        self,
        spec: ModuleSpec,
        model: nn.Module,
        weights: ModuleWeights,
        attention_modules: Sequence[str],
        mixers: list[PagedLayer],
        kernels: KernelSet,
        workspace: Workspace,
        dtype: torch.dtype,
        limits: StepLimits,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        self.workspace = workspace
        self.max_logits = limits.logit_rows
        self.mixers = mixers
        workspace.reserve("residual", limits.tokens, spec.hidden_size, dtype)
        workspace.reserve("last", limits.logit_rows, spec.hidden_size, dtype)
        workspace.reserve("logits", limits.logit_rows, spec.vocab_size, torch.float32)
        self._calls = PagedCalls(mixers)
        model.set_attn_implementation(PAGED)
        answer_with(model, self._calls, attention_modules)
        self._body = body_of(model)
        self._resumed = Resumed()
        names = {module: name for name, module in model.named_modules()}
        model.set_submodule(names[self._body], self._resumed)
        self._rest = model
        self._one_token = torch.zeros(1, 1, dtype=torch.int64, device=workspace.device)

    def forward(self, token_ids: Tensor, positions: Tensor, metadata: Sequence[Any]) -> Tensor:
        """Run the body on token_ids and positions (int64 [T]); metadata: attention metadata of each layer.

        Returns the input of the head, [T, H], a view of the workspace that is valid until the next step.
        """
        self._calls.begin(metadata)
        out = self._body(input_ids=token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False)
        self._resumed.kind = type(out)
        residual = self.workspace.view("residual", token_ids.shape[0])
        residual.copy_(out.last_hidden_state[0])
        return residual

    def logits(self, rows: Tensor) -> Tensor:
        """Return float32 logits [R, V] of the rows `rows` (int64 [R], R at most `max_logits`) of the latest step."""
        self._resumed.rows = self.hidden(rows).unsqueeze(0)
        result = self._rest(input_ids=self._one_token, use_cache=False)
        out = self.logits_view(rows.shape[0])
        out.copy_(result.logits[0])
        return out

    def hidden(self, rows: Tensor) -> Tensor:
        """Return the last hidden states [R, H] of the rows `rows`, valid until the next call."""
        last = self.workspace.view("last", rows.shape[0])
        self.kernels.take_rows(self.workspace.buffer("residual"), rows, last)
        return last

    def logits_view(self, count: int) -> Tensor:
        """Return the buffer that `logits` writes its result to, [count, V]: a view of the workspace, valid until the
        next call.
        """
        return self.workspace.view("logits", count)
