"""Medusa's heads and MLP speculators, from their published layouts, against plain torch in float32."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu
from transformers import LlamaConfig

from core.api.errors import UserError
from core.plugin.hookspecs import LoadContext
from core_runtime.contracts import DraftHeads, DraftView
from core_runtime.specs.draft_spec import BEHIND_NORM
from core_speculative.counted import CountedArguments
from core_speculative.medusa import manifest as medusa
from core_speculative.mlp_speculator import manifest as mlp
from tests.models.harness import StateDictLoader
from tests.speculative.draft_harness import context_of

SIZE = 24
VOCAB = 61
TARGET = LlamaConfig(
    vocab_size=VOCAB, hidden_size=SIZE, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1
).to_dict()
KEYS = [("a", 0), ("b", 0), ("c", 0)]


class Head:
    """The target's own head, as a kernel."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.shape = weight.shape

    def __call__(self, x: Tensor, out: Tensor) -> None:
        out.copy_(x @ self.weight.T)


def loaded(
    plugin: Any, hf_config: Mapping[str, Any], state: dict[str, Tensor], head: Tensor | None = None
) -> DraftHeads:
    inner = StateDictLoader(state)
    manifest = msgspec.structs.replace(inner.resolve(""), config=dict(hf_config))
    options: dict[str, Any] = {"loader": inner, "head": None if head is None else Head(head)}
    heads: DraftHeads = plugin.core_load(LoadContext(dtype="float32", manifest=manifest, options=options))
    assert isinstance(heads, DraftHeads)
    return heads


def drafts(heads: DraftHeads, hidden: Tensor, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Greedy drafts [count, B] and logits [count, B, V], as the draft pass asks for them."""
    view = DraftView(list(KEYS), tokens, hidden)
    found, rows = [], []
    for step in range(count):
        logits = heads.logits(view, step).clone()
        rows.append(logits)
        view.tokens = logits.argmax(-1)
        found.append(view.tokens)
    return torch.stack(found), torch.stack(rows)


def medusa_state(
    num_heads: int, num_layers: int, prefix: str, size: int = SIZE, vocab: int = VOCAB
) -> dict[str, Tensor]:
    """The authors' names."""
    state: dict[str, Tensor] = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            state[f"{prefix}{head}.{layer}.linear.weight"] = 0.2 * torch.randn(size, size)
            state[f"{prefix}{head}.{layer}.linear.bias"] = 0.2 * torch.randn(size)
        state[f"{prefix}{head}.{num_layers}.weight"] = torch.randn(vocab, size)
    return state


def medusa_oracle(state: dict[str, Tensor], hidden: Tensor, num_heads: int, num_layers: int) -> Tensor:
    """[heads, B, V]: each head by itself, x + silu(W x + b) and then its logits."""
    rows = []
    for head in range(num_heads):
        x = hidden
        for layer in range(num_layers):
            x = x + silu(x @ state[f"{head}.{layer}.linear.weight"].T + state[f"{head}.{layer}.linear.bias"])
        rows.append(x @ state[f"{head}.{num_layers}.weight"].T)
    return torch.stack(rows)


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_medusa(num_layers: int, prefix: str) -> None:
    torch.manual_seed(0)
    state = medusa_state(4, num_layers, prefix)
    hidden = torch.randn(3, SIZE)
    config = {"medusa_num_heads": 4, "medusa_num_layers": num_layers}
    asked = context_of(TARGET, config, state)
    spec = medusa.core_draft_spec(asked)
    assert spec.decoder is None and spec.taps == (BEHIND_NORM,)
    heads = loaded(medusa, config, state, torch.randn(VOCAB, SIZE))
    _, logits = drafts(heads, hidden, torch.zeros(3, dtype=torch.int64), 4)
    plain = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    torch.testing.assert_close(logits, medusa_oracle(plain, hidden, 4, num_layers))


def test_medusa_with_a_smaller_vocabulary_and_other_names() -> None:
    torch.manual_seed(1)
    tokens = torch.tensor([5, 9, 33, 60])
    state = {
        "blocks.0.layers.0.weight": torch.randn(SIZE, SIZE),
        "lm_heads.0.weight": torch.randn(4, SIZE),
        "token_map": tokens,
    }
    hidden = torch.randn(3, SIZE)
    heads = loaded(medusa, {}, state, torch.randn(VOCAB, SIZE))
    found, logits = drafts(heads, hidden, torch.zeros(3, dtype=torch.int64), 1)
    x = hidden + silu(hidden @ state["blocks.0.layers.0.weight"].T)
    expected = x @ state["lm_heads.0.weight"].T
    torch.testing.assert_close(logits[0][:, tokens], expected)
    assert torch.equal(found[0], tokens[expected.argmax(-1)])


class Speculator(nn.Module):
    """Wertheimer et al. 2024: state' = gelu(norm(projection(state) + share * embedding(token)))."""

    def __init__(self, count: int, inner: int, *, tied: bool, size: int = SIZE, vocab: int = VOCAB) -> None:
        super().__init__()
        distinct = 1 if tied else count
        self.count = count
        self.inner = inner
        self.emb = nn.ModuleList(nn.Embedding(vocab, inner) for _ in range(distinct))
        sizes = [size, inner] if tied else [size, *[inner] * (count - 1)]
        self.proj = nn.ModuleList(nn.Linear(taken, inner, bias=False) for taken in sizes)
        self.ln = nn.ModuleList(nn.LayerNorm(inner) for _ in range(distinct))  # it has a weight and a bias
        self.head = nn.ModuleList(nn.Linear(inner, vocab, bias=False) for _ in range(distinct))
        for norm in self.ln:
            norm.weight.data.normal_(1, 0.2)
            norm.bias.data.normal_(0, 0.2)

    @torch.no_grad()
    def drafts(self, hidden: Tensor, tokens: Tensor, *, scaled: bool) -> tuple[Tensor, Tensor]:
        weight = 0.5 ** (0.5 / self.count)
        share = math.sqrt((1 - weight**2) * (self.inner / 2)) / weight
        state = unit(hidden) / math.sqrt(2) if scaled else hidden
        found, rows = [], []
        for place in range(self.count):
            norm, head = (part[min(place, len(part) - 1)] for part in (self.ln, self.head))
            embedded = self.emb[min(place, len(self.emb) - 1)](tokens)
            state = self.proj[min(place, len(self.proj) - 1)](state) + share * embedded
            state = gelu(unit(state) * norm.weight + norm.bias)
            logits = head(state)
            tokens = logits.argmax(-1)
            found.append(tokens)
            rows.append(logits)
        return torch.stack(found), torch.stack(rows)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_mlp_speculator(tied: bool, scaled: bool) -> None:
    torch.manual_seed(2)
    oracle = Speculator(3, 20, tied=tied)
    state = {f"speculator.{name}": tensor for name, tensor in oracle.state_dict().items()}
    config = {
        "vocab_size": VOCAB,
        "emb_dim": SIZE,
        "inner_dim": 20,
        "n_predict": 3,
        "tie_weights": tied,
        "scale_input": scaled,
    }
    spec = mlp.core_draft_spec(context_of(TARGET, config, state))
    assert spec.decoder is None and spec.taps == (BEHIND_NORM,)
    hidden = torch.randn(3, SIZE)
    tokens = torch.tensor([4, 50, 7])
    found, logits = drafts(loaded(mlp, config, state), hidden, tokens, 3)
    expected, wanted = oracle.drafts(hidden, tokens, scaled=scaled)
    assert torch.equal(found, expected)
    torch.testing.assert_close(logits, wanted)


def test_the_state_follows_its_sequence_when_others_leave() -> None:
    torch.manual_seed(3)
    oracle = Speculator(2, 20, tied=False)
    config = {"vocab_size": VOCAB, "emb_dim": SIZE, "inner_dim": 20, "n_predict": 2}
    heads = loaded(mlp, config, oracle.state_dict())
    hidden = torch.randn(3, SIZE)
    first = heads.logits(DraftView(list(KEYS), torch.tensor([1, 2, 3]), hidden), 0).argmax(-1)
    left = heads.logits(DraftView([KEYS[2]], first[2:], hidden[2:]), 1)
    _, wanted = oracle.drafts(hidden, torch.tensor([1, 2, 3]), scaled=False)
    torch.testing.assert_close(left, wanted[1][2:])


MLP = {"vocab_size": VOCAB, "emb_dim": SIZE, "n_predict": 2}


@pytest.mark.parametrize(
    ("plugin", "config", "state", "count", "sentence"),
    [
        (medusa, {}, {"lm_head.weight": torch.zeros(1)}, 1, "no tensors of Medusa's heads"),
        (medusa, {}, medusa_state(2, 1, ""), 3, "num_speculative_tokens 3: the draft has 2 heads"),
        (medusa, {"hidden_size": 99}, medusa_state(2, 1, ""), 1, "hidden states of 99 numbers, the model's have 24"),
        (mlp, MLP, {"emb.0.weight": torch.zeros(1)}, 1, "no tensor 'proj.0.weight'"),
        (mlp, {**MLP, "vocab_size": 99}, {}, 1, "knows 99 tokens, the model 61"),
        (mlp, {**MLP, "emb_dim": 99}, {}, 1, "hidden states of 99 numbers"),
    ],
)
def test_heads_that_do_not_fit_are_refused_by_name(
    plugin: Any, config: dict[str, Any], state: dict[str, Tensor], count: int, sentence: str
) -> None:
    asked = context_of(TARGET, config, state)
    arguments = CountedArguments(num_speculative_tokens=count)
    with pytest.raises(UserError, match=sentence):
        plugin.core_draft_spec(dataclasses.replace(asked, arguments=arguments))


def test_heads_of_another_size_are_refused_by_name() -> None:
    state = medusa_state(2, 1, "", 32)
    with pytest.raises(UserError, match=r"'0.0.linear.weight' has shape \[32, 32\], expected \[24, 24\]"):
        loaded(medusa, {}, state, torch.randn(VOCAB, SIZE))
    oracle = Speculator(2, 20, tied=False)
    with pytest.raises(UserError, match=r"'emb.0.weight' has shape \[61, 20\], expected \[61, 16\]"):
        loaded(mlp, {**MLP, "inner_dim": 16}, oracle.state_dict())
