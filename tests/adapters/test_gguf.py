"""Adapters in GGUF files have the answers of the peft adapter that they were made from."""

from pathlib import Path

import numpy as np
import pytest

from core import SamplingParams
from core.api.errors import UserError
from core_adapters.gguf.format import GGUFFormat
from tests.adapters.engines import engine, prompt_logits
from tests.adapters.made import Oracle, converted, save_adapter

PROMPT = [1, 40, 77, 90, 12, 201, 33]
SCORED = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=260)


def test_logits_are_those_of_peft(tiny_llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tiny_llama, tmp_path / "peft")
    file = converted(adapter, tmp_path / "adapter.gguf", 16.0)
    with engine(tiny_llama, {}) as made:
        made.load(file)
        (scored,) = made.run([(PROMPT, file)], SCORED)
    wanted = Oracle(tiny_llama, adapter).logits(PROMPT).numpy()[:-1]
    assert np.abs(prompt_logits(scored) - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_what_is_no_adapter_is_a_sentence(tiny_llama: Path, tmp_path: Path) -> None:
    adapter = save_adapter(tiny_llama, tmp_path / "peft", target_modules=["o_proj"])
    other = converted(adapter, tmp_path / "other.gguf", 16.0, kind="control_vector")
    cut = converted(adapter, tmp_path / "cut.gguf", 16.0)
    cut.write_bytes(cut.read_bytes()[:-64])
    form = GGUFFormat()
    with pytest.raises(UserError, match=r"adapter\.type is 'control_vector'"):
        form.read(str(other))
    with pytest.raises(UserError, match="damaged or incomplete"):
        form.read(str(cut))
    assert not form.claims(str(tiny_llama)) and not form.claims(str(tmp_path / "peft"))
    with engine(tiny_llama, {}) as made, pytest.raises(UserError, match="no adapter of a known format"):
        made.load(tiny_llama)
