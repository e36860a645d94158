"""The proposer: its own matrices move the hidden state ahead, the model's own head reads it."""

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from core.api.errors import UserError

EPS = 1e-6


class DraftHeads:
    """The proposer's contract. Stateless: a sequence's drafts follow from its newest hidden state alone."""

    needs_hidden = True

    def __init__(self, weights, options):
        try:
            tensors = load_file(weights)
        except (OSError, SafetensorError) as error:
            raise UserError(f"--speculative-config.weights {weights}: cannot be read: {error}.") from error
        self.heads = [tensors[f"head.{i}"] for i in range(len(tensors))]
        self.head, self.norm = options.get("head"), options.get("norm")

    def on_start(self, key, token_ids):
        """Nothing to remember."""

    def propose(self, batch):
        """Token i: the model's head on the hidden state moved by matrix i."""
        if batch.hidden is None or self.head is None:
            return [[] for _ in batch.keys]
        columns = [self._tokens(batch.hidden.float() @ matrix.T) for matrix in self.heads]
        return [list(tokens)[:limit] for tokens, limit in zip(zip(*columns, strict=True), batch.budget, strict=True)]

    def on_finished(self, key):
        """Nothing to forget."""

    def _tokens(self, hidden):
        normed = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + EPS) * self.norm
        logits = torch.empty(len(hidden), self.head.shape[0])
        self.head(normed.contiguous(), logits)
        return logits.argmax(-1).tolist()
