"""Checks of latent layers whose keys an index chooses (capability `sparse`).

Owns: the check. Never does: know a layout. Called by: `core_kit.checks.attention`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from core.api.specs import IndexSpec, LatentSpec
from core_kit.case import Failure, Skipped, Subject
from core_kit.fixtures.attention_cases import choices, reasons_of, tolerance, usual
from core_kit.oracles.numbers import close, generator
from core_kit.oracles.reference import Conversation, PagedRun, as_attention, batch_view, dense_attention
from core_runtime.contracts import ChoosesKeys

TOP_K = 9
LENGTHS = (31, 4, 19)
LAYER = LatentSpec(4, 32, 16, 24, 24, 0.16, 24, IndexSpec(6, 16, TOP_K))


class IndexedRun(PagedRun):
    """A run whose layer has an index.

    keys, queries, weights: for each conversation [L, Di], [L, Hi, Di] and [L, Hi]. They are small integers, so that scores are
        exact and many of them equal.
    chosen: what each step has chosen, for each conversation.
    """

    def prepare(self, random: torch.Generator) -> None:
        """Draw what the index reads."""
        index = LAYER.index
        assert index is not None

        def draw(*shape: int) -> list[Tensor]:
            return [torch.randn(len(c.k), *shape, generator=random).mul(0.8).round() for c in self.conversations]

        self.keys, self.queries = draw(index.head_size), draw(index.num_heads, index.head_size)
        self.weights = draw(index.num_heads)
        self.chosen: list[list[list[int]]] = [[] for _ in self.conversations]

    def indexed_step(self, query_lens: list[int], seq_lens: list[int]) -> dict[int, Tensor]:
        """Write and attend the new tokens of each sequence; return the outputs."""
        alive = [i for i, n in enumerate(query_lens) if n]
        lens = [query_lens[i] for i in alive]
        view = batch_view(lens, [seq_lens[i] for i in alive], [self.tables[i] for i in alive], self.block_size)
        metadata = self.backend.build(view)

        def rows(parts: list[Tensor]) -> Tensor:
            return torch.cat([parts[i][seq_lens[i] - query_lens[i] : seq_lens[i]] for i in alive])

        self.write(rows([c.k for c in self.conversations]), rows([c.v for c in self.conversations]), metadata)
        self.backend.write_index(self.handle, rows(self.keys), metadata)
        chosen = torch.full((sum(lens), TOP_K), -7, dtype=torch.int32)
        self.backend.choose(self.handle, rows(self.queries), rows(self.weights), metadata, chosen)
        latent, rotated = rows([c.q for c in self.conversations]).split([LAYER.rank, LAYER.rope_size], -1)
        out = torch.full(latent.shape, torch.nan)
        self.backend.forward_chosen(self.handle, latent, rotated, chosen, metadata, out)
        if view.max_seq_len > TOP_K:
            for i, part in zip(alive, chosen.split(lens), strict=True):
                self.chosen[i] += part.tolist()
        else:
            for i in alive:
                self.chosen[i] += [[]] * query_lens[i]
        return dict(zip(alive, out.split(lens), strict=True))

    def best(self, number: int, position: int) -> Tensor:
        """Return the positions that a query must read, ascending."""
        keys = self.keys[number][: position + 1].double()
        products = (keys @ self.queries[number][position].double().T) / math.sqrt(keys.shape[1])
        scores = (products.relu() * self.weights[number][position].double()).sum(-1)
        return scores.argsort(descending=True, stable=True)[:TOP_K].sort().values


def keys_are_chosen_by_the_index(subject: Subject) -> None:
    """With `sparse`: each query reads the best keys alone, of equal ones the earlier, whole and in chunks, beside others."""
    if not subject.manifest.spec.capabilities.get("sparse", False):
        raise Skipped("it does not declare sparse; models whose index chooses keys need another backend")
    if not isinstance(subject.loaded, ChoosesKeys):
        raise Failure("declares sparse, but lacks write_index, choose or forward_chosen (ChoosesKeys)")
    _, block, dtype = usual(subject)
    _, blocks, dtypes = choices(subject)
    tried = 0
    for block_size, stored in [*((size, dtype) for size in blocks), *((block, other) for other in dtypes)]:
        if reasons_of(subject, LAYER, block_size, stored):
            continue
        tried += 1
        for chunk in (0, 5):
            _compare(subject, block_size, stored, chunk)
    if not tried:
        raise Failure("declares sparse, but refuses every layer with an index that it was asked for")


def _compare(subject: Subject, block_size: int, dtype: str, chunk: int) -> None:
    random = generator(f"index {block_size} {dtype}")
    conversations = [Conversation.random(n, LAYER, dtype, random) for n in LENGTHS]
    run = IndexedRun(subject.loaded, LAYER, block_size, dtype, conversations, random)
    run.prepare(random)
    done = [0] * len(LENGTHS)
    outs: list[list[Tensor]] = [[] for _ in LENGTHS]
    while done != list(LENGTHS):
        counts = [min(chunk or n, n - before) for n, before in zip(LENGTHS, done, strict=True)]
        done = [before + count for before, count in zip(done, counts, strict=True)]
        for number, out in run.indexed_step(counts, done).items():
            outs[number].append(out)
    like = as_attention(LAYER)
    for number, conversation in enumerate(conversations):
        label = f"keys chosen by an index, blocks of {block_size} in {dtype}, chunks of {chunk}, sequence {number}"
        held_k, held_v = conversation.held
        for position, out in enumerate(torch.cat(outs[number])):
            best = run.best(number, position)
            told = run.chosen[number][position]
            wanted = [*best.tolist(), *[-1] * (TOP_K - len(best))]
            if told and told != wanted:
                raise Failure(f"{label}: the query at {position} chooses {told}, expected {wanted}")
            query = conversation.q[position : position + 1]
            expected = dense_attention(query, held_k[best], held_v[best], like, run.params)
            close(out.unsqueeze(0), expected, tolerance(dtype), f"{label}, position {position}", axis=-1)
