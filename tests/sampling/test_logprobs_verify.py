"""Log-probabilities against torch's log_softmax, and verification of drafts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sampling.reference import Row, draw, sample_one, sequence

from core_runtime.executor.answers.prompt_scores import score_prompts
from core_runtime.sampling import Sampler, accept, prompt_logprobs
from core_runtime.sampling.changes.host_logits import HostLogits

VOCAB = 2000


def random_logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(9)) * 4


def check(entry, logits, token, num):
    expected = torch.log_softmax(logits.double(), 0)
    assert entry.token_ids[0] == token
    assert entry.logprobs == pytest.approx(expected[entry.token_ids].tolist(), abs=1e-5)
    assert entry.token_ids[1:] == torch.topk(logits, num).indices.tolist()
    assert entry.ranks == [1 + int((logits > logits[token]).sum()), *range(1, num + 1)]


@pytest.mark.parametrize("num", [0, 1, 5, 20, VOCAB])
def test_output_logprobs_agree_with_torch(num):
    logits = random_logits(1)[0]
    result = sample_one(logits, sequence(seed=4, logprobs=num, temperature=2.0))
    check(result.logprobs, logits, result.token_id, num)


def test_rows_are_brought_to_the_host_once_each():
    """Logits that numpy cannot see where they lie: of a device, or of another type."""
    logits = random_logits(4).bfloat16()
    there = HostLogits(logits)
    there.bring([2, 0])
    row = there[2]
    logits[2] = 0  # what was brought stays
    assert there[2] is row and row.tolist() == random_logits(4)[2].bfloat16().tolist()
    assert there[3].tolist() == logits[3].tolist()
    assert there.some(1, [5, 7]) == logits[1, [5, 7]].tolist()
    here = HostLogits(random_logits(4))
    assert here[1].tolist() == random_logits(4)[1].tolist()


def test_whole_vocabulary():
    logits = random_logits(1)[0]
    entry = sample_one(logits, sequence(logprobs=-1)).logprobs
    assert sorted(entry.token_ids[1:]) == list(range(VOCAB))
    assert entry.logprobs[1:] == sorted(entry.logprobs[1:], reverse=True)
    assert sum(torch.tensor(entry.logprobs[1:], dtype=torch.float64).exp()) == pytest.approx(1.0)


def test_logprobs_are_raw_whatever_the_request_does_to_its_logits():
    logits = random_logits(1)[0]
    plain = sample_one(logits, sequence(temperature=0.0, logprobs=5)).logprobs
    shaped = sample_one(
        logits,
        sequence(temperature=0.5, logprobs=5, top_k=3, logit_bias={7: 50.0}, repetition_penalty=2.0, bad_words=[[1]]),
    )
    assert shaped.token_id == 7
    assert shaped.logprobs.token_ids[1:] == plain.token_ids[1:]
    assert shaped.logprobs.logprobs[1:] == plain.logprobs[1:]
    check(shaped.logprobs, logits, 7, 5)


def test_equal_logits_are_listed_by_id():
    logits = torch.zeros(50)
    assert sample_one(logits, sequence(temperature=0.0, logprobs=4)).logprobs.token_ids == [0, 0, 1, 2, 3]


def test_no_logprobs_unless_asked():
    assert sample_one(random_logits(1)[0], sequence()).logprobs is None


@pytest.mark.parametrize("num", [0, 3])
def test_prompt_logprobs_agree_with_torch_and_ignore_padding(num):
    logits, tokens = random_logits(6), [0, 5, 1999, 5, 7, 8]
    padded = torch.cat([logits, torch.full((6, 40), 99.0)], dim=1)
    for row, token, entry in zip(logits, tokens, prompt_logprobs(padded, tokens, num, vocab_size=VOCAB), strict=True):
        check(entry, row, token, num)
    assert prompt_logprobs(logits, tokens, num) == prompt_logprobs(padded, tokens, num, vocab_size=VOCAB)


def test_scores_of_a_prompt_name_no_token_beyond_the_vocabulary():
    padded = torch.cat([random_logits(2), torch.full((2, 40), 99.0)], dim=1)
    one = np.array([0], np.int64)
    step = SimpleNamespace(slots=one, num_computed=one, query_lens=one + 2, cu_seqlens=one)
    request = SimpleNamespace(prompt_token_ids=[4, 5, 6], params=SimpleNamespace(prompt_logprobs=-1))
    result = SimpleNamespace(prompt_logprobs={})
    score_prompts(step, {0: request}, result, lambda tokens: padded[list(tokens)], 8, Sampler(VOCAB))
    for row, token, entry in zip(padded, [5, 6], result.prompt_logprobs[0], strict=True):
        assert max(entry.token_ids) == VOCAB - 1
        assert entry.token_ids[0] == token
        assert entry.logprobs[0] == pytest.approx(float(torch.log_softmax(row[:VOCAB].double(), 0)[token]), abs=1e-5)


@pytest.mark.parametrize(
    ("drafts", "sampled", "accepted"),
    [([], [4], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 9, 3], 1), ([1, 2], [9, 2, 3], 0), ([1, 2], [1, 2], 2)],
)
def test_agreeing_prefix(drafts, sampled, accepted):
    assert accept(drafts, sampled) == accepted


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_p": 0.8, "presence_penalty": 1.0}]
)
def test_speculation_changes_no_token(params):
    """A toy model (logits from the last token) decoded one by one, and with good and bad drafts."""
    table, sampler = random_logits(VOCAB)[:, :64] * 0.5, Sampler(64)

    def plain(count):
        state = sequence(prompt=[3], seed=11, **params)
        for _ in range(count):
            last = (state.output_token_ids or [3])[-1]
            state.extend([draw(sampler, table[last][None], [Row(state)])[0].token_id])
        return state.output_token_ids

    truth = plain(60)
    state = sequence(prompt=[3], seed=11, **params)
    steps = 0
    while len(state.output_token_ids) < 60:
        done = len(state.output_token_ids)
        drafts = truth[done : done + 3]
        if steps % 3 == 0 and drafts:
            drafts[-1] = (drafts[-1] + 1) % 64
        inputs = [(state.output_token_ids or [3])[-1], *drafts]
        rows = [Row(state, drafts[:j]) for j in range(len(inputs))]
        sampled = [result.token_id for result in draw(sampler, table[inputs], rows)]
        state.extend(sampled[: accept(drafts, sampled) + 1])
        steps += 1
    assert state.output_token_ids[:60] == truth and steps < 30
