"""Rewriting a GGUF file in another format: the same model, rounded once."""

import gguf
import numpy as np
import pytest

from benchmarks.peer.checkpoints import rewrite_gguf
from tests.loaders.gguf_files import finish


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_token_list(["a", "b"])
    writer.add_rope_freq_base(1e5)
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(8, 64)).astype(np.float32)
    writer.add_tensor(
        "blk.0.attn_q.weight",
        gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q4_1),
        raw_dtype=gguf.GGMLQuantizationType.Q4_1,
    )
    writer.add_tensor("output_norm.weight", rng.normal(size=64).astype(np.float32))
    finish(writer)
    return path


def tensors(path):
    reader = gguf.GGUFReader(path)
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    return reader, values, {t.name: t.tensor_type.name for t in reader.tensors}


@pytest.mark.parametrize(("form", "kind", "error"), [("bf16", "BF16", 2**-8), ("q8_0", "Q8_0", 2**-6)])
def test_values_survive_within_the_rounding_of_the_format(source, tmp_path, form, kind, error):
    rewrite_gguf(source, tmp_path / "target.gguf", form)
    _, before, _ = tensors(source)
    reader, after, kinds = tensors(tmp_path / "target.gguf")
    assert kinds == {"blk.0.attn_q.weight": kind, "output_norm.weight": "F32"}
    largest = np.abs(before["blk.0.attn_q.weight"]).max()
    assert np.abs(after["blk.0.attn_q.weight"] - before["blk.0.attn_q.weight"]).max() <= error * largest
    assert np.array_equal(after["output_norm.weight"], before["output_norm.weight"])
    assert after["blk.0.attn_q.weight"].shape == (8, 64)
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert reader.fields["llama.rope.freq_base"].contents() == pytest.approx(1e5)
    assert reader.fields["llama.block_count"].contents() == 1
