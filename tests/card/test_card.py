"""The arithmetic of the card: shares, and predictions that come true in a simulated machine."""

import pytest

from core.commands.main import main
from core_commands.card import report
from core_commands.card.card import Round, advice, distinct, rows
from core_commands.card.limits import Limits, product_rate
from core_commands.card.timings import HEAD_TOKENS, SHORT, Lengths, Times
from core_config.resolve import resolve
from tests.tiny_models import save_checkpoint

LENGTHS = Lengths(prompt=512, context=400, answer=32)


def simulated(work, lengths, *, bandwidth=1e9, products=1e9, share=0.5, fixed=0.0):
    """A round of a machine in which everything reaches one share of its limits. fixed: seconds of a step besides."""

    def read(nbytes):
        return nbytes / bandwidth / share

    near = fixed + read(work.weights.nbytes + work.key_bytes(SHORT + lengths.answer // 2))
    times = Times(
        prefill=work.prompt_numbers(lengths.prompt) / products / share,
        head=work.head.numbers * (HEAD_TOKENS - 1) / products / share,
        decode=near,
        decode_far=near + read(work.key_bytes(lengths.context) - work.key_bytes(SHORT + lengths.answer // 2)),
        decode_many=2 * near,
        sampled=near + 0.001,
        outside=0.003,
    )
    return Round(Limits(bandwidth, products), times)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=1024, vocab_size=512)


def resolver(path):
    def again(further):
        return resolve({"model": str(path), **further}, context="serve")

    return again


def test_shares_are_those_of_the_machine(checkpoint):
    work = resolver(checkpoint)({}).work()
    found = rows(work, LENGTHS, [simulated(work, LENGTHS, bandwidth=speed) for speed in (1e9, 2e9, 5e8)])
    shares = {row.what: row.share for row in found if row.share is not None}
    assert list(shares.values()) == pytest.approx([0.5] * 4)
    limits = [row.limit for row in found if row.share is not None]
    assert limits == ["matmul peak", "bandwidth", "matmul peak", "bandwidth"]
    sampling = next(row for row in found if row.what.startswith("sampling"))
    assert sampling.ms == pytest.approx(1.0) and sampling.share is None


def test_predictions_come_true_where_bytes_take_the_time(checkpoint):
    again = resolver(checkpoint)
    base = again({})
    work = base.work()
    rounds = [simulated(work, LENGTHS, products=1e12, share=0.9)] * 3
    found = {each.argument: each for each in advice(base, LENGTHS, rounds, again)}

    lighter = again({"quantization": "int8"}).work()
    sure = rounds[0].times.decode / simulated(lighter, LENGTHS, products=1e12, share=0.9).times.decode - 1
    most = work.weights.nbytes / lighter.weights.nbytes - 1
    assert 0.6 * most < found["quantization"].gain <= sure <= most  # a kernel that reads at 90%: at least, and at most
    assert f"up to {most:+.0%}" in found["quantization"].note
    keys = simulated(again({"kv_cache_dtype": "int8_per_token_head"}).work(), LENGTHS, products=1e12, share=0.9)
    measured = rounds[0].times.decode_far / keys.times.decode_far - 1
    assert found["kv_cache_dtype"].gain == pytest.approx(measured, rel=0.15)

    chunk = found["max_num_mixed_batched_tokens"]
    decode, prefill = rounds[0].times.decode, rounds[0].times.prefill
    present = base.arguments["max_num_mixed_batched_tokens"][0]
    assert chunk.value == 2 * present

    def until_first(size):  # step by step, the way a scheduler cuts a prompt
        left, seconds = LENGTHS.prompt, 0.0
        while left:
            part = min(size, left)
            seconds += decode + prefill * part / LENGTHS.prompt
            left -= part
        return seconds

    assert chunk.gain == pytest.approx(until_first(present) / until_first(chunk.value) - 1)


def test_time_that_is_no_reading_is_not_predicted_away(checkpoint):
    again = resolver(checkpoint)
    base = again({})
    fixed = simulated(base.work(), LENGTHS).times.decode
    one = simulated(base.work(), LENGTHS, fixed=fixed, share=1.0)
    found = {each.argument: each for each in advice(base, LENGTHS, [one], again)}
    then = simulated(again({"quantization": "int8"}).work(), LENGTHS, fixed=fixed, share=1.0)
    assert found["quantization"].gain == pytest.approx(one.times.decode / then.times.decode - 1, rel=0.15)


def test_what_a_model_does_not_take_is_no_advice(checkpoint):
    base = resolver(checkpoint)({})
    rounds = [simulated(base.work(), LENGTHS)]
    found = advice(base, LENGTHS, rounds, lambda further: None)
    assert {each.argument for each in found} <= {"max_num_mixed_batched_tokens"}
    nearer = Lengths(512, 0, 32)
    assert any(row.note and row.ms is None and "attention" in row.what for row in rows(base.work(), nearer, rounds))


def test_noise_is_no_share_and_impossible_shares_are_told(checkpoint):
    work = resolver(checkpoint)({}).work()
    one = simulated(work, LENGTHS, share=8.0)
    text = report.as_text(rows(work, LENGTHS, [one]), [], [one])
    assert "800% of the bandwidth" in text and "others used the machine while its limits were measured" in text
    noisy = Round(one.limits, Times(1.0, -0.1, 1.0, 0.9, 1.0, 0.9, 0.1))
    found = {row.what: row for row in rows(work, LENGTHS, [noisy])}
    assert all(row.share is None for row in found.values() if row.ms is not None and row.ms < 0)
    assert "less than what rounds differ by" in report.as_text(list(found.values()), [], [noisy])


def test_experts_of_several_streams_overlap():
    assert distinct(8, 2, 1) == pytest.approx(2) and distinct(8, 2, 8) == pytest.approx(8 * (1 - 0.75**8))


def test_the_rate_of_products_is_a_rate():
    assert product_rate() > 1e6


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--rounds", "0"], "--rounds 0: expected"),
        (["--max-model-len", "64"], "--answer-len 32: the longest request has 64 tokens; give fewer"),
        (["--runds", "2"], "Did you mean '--rounds'"),
    ],
)
def test_mistakes_are_sentences(words, expected, capsys):
    assert main(["bench", "card", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_card_of_a_tiny_model(checkpoint, tmp_path, capsys):
    words = ["bench", "card", str(checkpoint), "--rounds", "1", "--answer-len", "8", "--prompt-len", "64"]
    assert main([*words, "--output-json", str(tmp_path / "card.json")]) == 0
    out = capsys.readouterr().out
    assert "of the bandwidth" in out and "HTTP, JSON and tokens of a request" in out
    assert (tmp_path / "card.json").stat().st_size > 100
