"""Token bitmasks: their layout against xgrammar, and their way through the sampler."""

import numpy as np
import pytest
import torch
from sampling.reference import Row, draw, sample_one, sequence

from core_runtime.sampling import Sampler
from core_runtime.sampling.bitmask import apply_bitmask, bitmask_of, num_words


def random_masks(rows: int, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks, and which tokens they allow."""
    allowed = np.random.default_rng(vocab).random((rows, vocab)) < 0.3
    masks = np.stack([bitmask_of(np.flatnonzero(row).tolist(), vocab) for row in allowed])
    return masks, allowed


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
def test_bits_are_tokens(vocab):
    logits = np.random.default_rng(0).standard_normal((5, vocab)).astype(np.float32)
    masks, allowed = random_masks(5, vocab)
    expected = np.where(allowed, logits, np.float32(-np.inf))
    for row, token in zip(*allowed.nonzero(), strict=True):
        assert int(masks[row, token // 32]) >> (token % 32) & 1
    apply_bitmask(logits, masks)
    assert np.array_equal(logits, expected)


@pytest.mark.parametrize("vocab", [32, 77, 4096])
def test_xgrammar_masks_the_same(vocab):
    xgrammar = pytest.importorskip("xgrammar")
    logits = np.random.default_rng(1).standard_normal((4, vocab)).astype(np.float32)
    masks, _ = random_masks(4, vocab)
    assert xgrammar.allocate_token_bitmask(4, vocab).shape == masks.shape
    theirs = torch.from_numpy(logits.copy())
    xgrammar.apply_token_bitmask_inplace(theirs, torch.from_numpy(masks), backend="cpu")
    apply_bitmask(logits, masks)
    assert np.array_equal(logits, theirs.numpy())


def test_masks_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"int32 of the shape \(2, 4\), which a vocabulary of 100 tokens has"):
        apply_bitmask(np.zeros((2, 100), np.float32), np.zeros((2, num_words(96)), np.int32))


class Alternating:
    """Lets even tokens follow an odd number of output tokens, and odd ones an even number; nothing is masked at first."""

    def __init__(self, vocab: int) -> None:
        self.masks = [bitmask_of(range(first, vocab, 2), vocab) for first in (1, 0)]
        self.seen: list[list[int]] = []
        self.must_end = False

    def __call__(self, output, num_drafted):
        self.seen.append(output.tolist())
        return None if not len(output) else self.masks[len(output) % 2]

    def allows(self, output, num_drafted, token_id):
        """Only of every other token that may come it says so."""
        words = self(output, num_drafted)
        may = words is None or int(words[token_id // 32]) >> (token_id % 32) & 1
        return bool(may) and token_id % 4 < 2


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.9}])
def test_a_sequence_is_masked_at_every_position_and_its_neighbours_are_not(params):
    logits = torch.randn(1, 60, generator=torch.Generator().manual_seed(3)).expand(2, 60)
    free, masked = sequence(seed=1, **params), sequence(seed=1, mask=Alternating(60), logprobs=1, **params)
    sampler = Sampler(60)
    for step in range(6):
        plain, other = draw(sampler, logits, [Row(free), Row(masked)])
        assert plain == sample_one(logits[0], free)
        if step == 0:
            assert other.token_id == plain.token_id
        else:
            allowed = torch.full((60,), -torch.inf)
            allowed[(step + 1) % 2 :: 2] = logits[0, (step + 1) % 2 :: 2]
            assert other.token_id == sample_one(allowed, free).token_id
        assert other.logprobs.logprobs[0] == pytest.approx(float(logits[0].log_softmax(0)[other.token_id]), abs=1e-5)
        free.extend([plain.token_id])
        masked.extend([other.token_id])


def test_a_mask_sees_drafts_as_output():
    mask = Alternating(60)
    sample_one(torch.zeros(60), sequence(output=[5], mask=mask), drafts=[8, 3])
    assert mask.seen == [[5, 8, 3]]


class Always:
    """The same mask at every position."""

    def __init__(self, words, must_end=False) -> None:
        self.words = words
        self.must_end = must_end

    def __call__(self, output, num_drafted):
        return self.words

    def allows(self, output, num_drafted, token_id):
        return False


def test_a_mask_that_allows_nothing_ends_its_row_alone():
    nothing = sequence(mask=Always(bitmask_of([], 40)))
    first, second = draw(Sampler(40), torch.randn(2, 40), [Row(sequence()), Row(nothing)])
    assert first.error is None and "rule out the whole vocabulary" in second.error
