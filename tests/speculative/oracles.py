"""Published drafts in plain torch, from their papers and the layouts of their checkpoints; blocks are transformers' own.

They keep no cache: every draft computes the whole sequence again. Position i takes token i and the hidden state from which
it was sampled, position 0 takes zeros.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

Block = Callable[[Tensor], Tensor]


class RMSNorm(nn.Module):
    """x / root mean square, times weights."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def causal_mask(length: int, window: int | None = None, chunk: int | None = None) -> Tensor:
    """[1, 1, T, T], to be added to scores.

    window: tokens that each token sees, itself included; None: all before it. chunk: tokens see those of their own chunk.
    """
    lowest = torch.full((length, length), torch.finfo(torch.float32).min)
    mask = lowest.triu(1)
    if window is not None:
        mask = mask + lowest.tril(-window)
    if chunk is not None:
        own = torch.arange(length) // chunk
        mask = mask.masked_fill(own[:, None] != own, torch.finfo(torch.float32).min)
    return mask[None, None]


def run_block(
    layer: nn.Module, rotary: nn.Module, x: Tensor, window: int | None = None, kind: str = "", chunk: int | None = None
) -> Tensor:
    """A decoder layer of transformers on x [T, H]. kind: that of the layer, where rotary embeddings differ by it."""
    positions = torch.arange(len(x))[None]
    embeddings = rotary(x[None], positions, *([kind] if kind else []))
    mask = causal_mask(len(x), window, chunk)
    out = layer(x[None], attention_mask=mask, position_ids=positions, position_embeddings=embeddings)
    out = out[0] if isinstance(out, tuple) else out
    return out.reshape(len(x), -1)


class Drafter(nn.Module):
    """What all of them share: the embedding, the head and the loop."""

    embedding: Tensor
    head: Tensor

    def out_of(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The residual stream [T, H] behind the blocks."""
        raise NotImplementedError

    def logits(self, stream: Tensor) -> Tensor:
        """[V] over the target's tokens, of one row [H]."""
        return self.head @ stream

    def carried(self, stream: Tensor) -> Tensor:
        """What the next position takes, from one row [H]."""
        return stream

    @torch.no_grad()
    def drafts(self, tokens: list[int], taken: Tensor, count: int) -> tuple[list[int], Tensor]:
        """taken: [T - 1, H], the hidden state behind each token but the newest."""
        hidden = torch.cat([torch.zeros_like(taken[:1]), taken])
        found: list[int] = []
        rows: list[Tensor] = []
        for _ in range(count):
            ids = torch.tensor([*tokens, *found])
            stream = self.out_of(self.embedding[ids], hidden)[-1]
            logits = self.logits(stream)
            rows.append(logits)
            found.append(int(logits.argmax()))
            hidden = torch.cat([hidden, self.carried(stream)[None]])
        return found, torch.stack(rows)


class Eagle(Drafter):
    """EAGLE: a projection of both side by side, then blocks of which the first has no norm in front of its attention."""

    def __init__(self, config: LlamaConfig, embedding: Tensor, head: Tensor, *, bias: bool) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = head
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.layers[0].input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)

    def out_of(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        x = self.fc(torch.cat([embedded, hidden], -1))
        for layer in self.layers:
            x = run_block(layer, self.rotary, x)
        return x


class Eagle3(Drafter):
    """EAGLE-3: taps are projected, and the attention of the first block reads embedding and hidden state side by side."""

    def __init__(self, config: LlamaConfig, embedding: Tensor, num_taps: int, *, norms_stream: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.embedding = embedding
        self.norms_stream = norms_stream
        self.fc = nn.Linear(num_taps * size, size, bias=False)
        self.midlayer = LlamaDecoderLayer(config, 0)
        self.midlayer.hidden_norm = RMSNorm(size, config.rms_norm_eps)
        attention = self.midlayer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(attention, name)
            setattr(attention, name, nn.Linear(2 * size, narrow.out_features, bias=False))
        self.norm = RMSNorm(size, config.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)
        chosen = torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values
        self.d2t = chosen - torch.arange(len(chosen))

    def out_of(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        layer = self.midlayer
        normed = layer.hidden_norm(hidden)
        both = torch.cat([layer.input_layernorm(embedded), normed], -1)
        cos_sin = self.rotary(both[None], torch.arange(len(both))[None])
        mixed, _ = layer.self_attn(both[None], position_embeddings=cos_sin, attention_mask=causal_mask(len(both)))
        x = (normed if self.norms_stream else hidden) + mixed[0]
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def logits(self, stream: Tensor) -> Tensor:
        small = self.lm_head(self.norm(stream))
        spread = torch.full((len(self.embedding),), float("-inf"))
        spread[torch.arange(len(small)) + self.d2t] = small
        return spread


class NextToken(Drafter):
    """A layer for multi-token prediction: both are normed, projected, and go through a block of the model's kind."""

    def __init__(
        self,
        size: int,
        eps: float,
        block: Block,
        embedding: Tensor,
        head: Tensor,
        *,
        offset: float = 0.0,
        hidden_first: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = head
        self.block = block
        self.offset = offset
        self.hidden_first = hidden_first
        self.of_embedding = RMSNorm(size, eps)
        self.of_hidden = RMSNorm(size, eps)
        self.project = nn.Linear(2 * size, size, bias=False)
        self.last = RMSNorm(size, eps)

    def out_of(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        parts = [self.of_embedding(embedded), self.of_hidden(hidden)]
        if self.hidden_first:
            parts.reverse()
        return self.block(self.project(torch.cat(parts, -1)))

    def logits(self, stream: Tensor) -> Tensor:
        return self.head @ self.last(stream)

    def carried(self, stream: Tensor) -> Tensor:
        return self.last(stream)

    def published(self, weight: Tensor) -> Tensor:
        """A norm's weights as the checkpoint has them."""
        return weight - self.offset
