"""What waives "same request, same tokens", as `core config explain` names it."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.api.errors import ConfigError
from core.commands.main import main
from core_config.resolve import Resolution, resolve
from tests.families.oracle import reference
from tests.tiny_models import save_checkpoint

OWN = "import msgspec\nclass Own(msgspec.Struct, frozen=True):\n    states: str = 'scanned'\n"
TORCH = {"plugins": "no:cpu_native", "attention_backend": "torch_sdpa"}


def resolved(model: Path, **arguments: Any) -> Resolution:
    return resolve({"model": str(model), "device": "cpu", **arguments}, context="llm", environ={})


@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_native_kernels_waive_nothing(tiny_llama: Path, numerics: str) -> None:
    assert resolved(tiny_llama, numerics=numerics).waivers == []


def test_compiled_operations_that_nobody_calls_waive_nothing(tiny_llama: Path) -> None:
    """The native kernels serve all that torch could compile; where it comes before them, it does compute."""
    assert resolved(tiny_llama, optimization_level=3).waivers == []
    (told,) = resolved(tiny_llama, kernels="inductor,cpu_native").waivers
    assert "inductor" in told


def test_states_waive_nothing(tiny_lfm2: Path) -> None:
    """Short convolutions in plain torch are computed number by number; attention in plain torch is not."""
    assert resolved(tiny_lfm2).waivers == []
    (told,) = resolved(tiny_lfm2, attention_backend="torch_sdpa").waivers
    assert "torch_sdpa" in told


def test_plain_torch_is_named_part_by_part(tiny_llama: Path) -> None:
    kernels = "kernels: no plugin fits, and operations in plain torch depend on the batch they run in"
    attention = "attention plugin 'torch_sdpa' does not declare batch_invariant"
    way_out = "; --numerics reference makes it independent, slowly"
    assert resolved(tiny_llama, attention_backend="torch_sdpa").waivers == [attention + way_out]
    assert resolved(tiny_llama, plugins="no:cpu_native").waivers == [kernels + way_out]
    assert resolved(tiny_llama, **TORCH).waivers == [attention + way_out, kernels + way_out]


def test_plain_torch_with_reference_numerics_waives_nothing(tiny_llama: Path) -> None:
    done = resolved(tiny_llama, **TORCH, numerics="reference")
    assert done.waivers == [] and done.numerics.startswith("torch-rows-")


def test_a_plugin_that_promises_nothing_stays_a_waiver(tiny_llama: Path, tmp_path: Path) -> None:
    manifest = (Path(__file__).parents[2] / "plugins/attention/core_attention/torch_sdpa/manifest.py").read_text()
    mine = tmp_path / "mine.py"
    manifest = manifest.replace("CONTRACT = 1", 'CONTRACT = 1\nKIND = "attention"').replace(
        'name="torch_sdpa"', 'name="mine"'
    )
    mine.write_text(manifest.replace('"reference_numerics": True,', ""))
    done = resolved(tiny_llama, plugins=str(mine), attention_backend="mine", numerics="reference")
    assert done.waivers == ["attention plugin 'mine' does not declare batch_invariant; choose another that does"]


def test_kernels_that_promise_nothing_can_be_left_out(tiny_llama: Path, tmp_path: Path) -> None:
    """Nobody chooses kernels by name, so the way out is another one."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from core.plugin.hookspecs import PluginSpec, hookimpl\nCONTRACT, KIND = 1, 'kernels'\n"
        "@hookimpl\ndef core_spec(): return PluginSpec(name='mine')\n"
        "@hookimpl\ndef core_supports(query): return []\n"
    )
    told = resolved(tiny_llama, plugins=str(mine)).waivers
    assert told == ["kernels plugin 'mine' does not declare batch_invariant; --plugins no:mine leaves it out"]
    assert resolved(tiny_llama, plugins=f"{mine},no:mine").waivers == []


def test_both_forms_of_explain_name_them(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "explain", str(tiny_llama), "--device", "cpu", "--attention-backend", "torch_sdpa"]
    assert main([*words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["waivers"]
    assert "torch_sdpa" in told and "--numerics reference" in told
    assert main(words) == 0
    assert told in capsys.readouterr().out


def test_an_argument_that_gives_up_the_guarantee_is_a_waiver(tiny_lfm2: Path, tmp_path: Path) -> None:
    manifest = (Path(__file__).parents[2] / "plugins/attention/core_attention/torch_sdpa/manifest.py").read_text()
    mine = tmp_path / "mine.py"
    manifest = manifest.replace("CONTRACT = 1", f'CONTRACT = 1\nKIND = "attention"\n{OWN}')
    manifest = manifest.replace('name="torch_sdpa"', 'name="mine", arguments=Own')
    variant = '"variant_arguments": {"states": {"chunked": "state"}},'
    mine.write_text(manifest.replace('"reference_numerics": True,', f'"batch_invariant": True, {variant}'))
    plugins = {"plugins": str(mine), "attention_backend": "mine"}
    assert resolved(tiny_lfm2, **plugins, attention_config={"mine": {"states": "scanned"}}).waivers == []
    chunked = resolved(tiny_lfm2, **plugins, attention_config={"mine": {"states": "chunked"}})
    (told,) = chunked.waivers
    assert told == "--attention-config.mine.states chunked: it is not batch_invariant; leave the argument out"
    bits = {row.operations: row.same_bits for row in chunked.computed()}
    assert bits["attention.full",] == "yes"
    assert bits["attention.state",] == "no, with --attention-config.mine.states chunked"
    with pytest.raises(ConfigError, match=r"mine\.states chunked: it is not batch_invariant"):
        resolved(tiny_lfm2, **plugins, attention_config={"mine": {"states": "chunked"}}, batch_invariant=True)


def test_a_start_says_when_heads_that_no_native_kernel_has_waive_the_promise(tmp_path: Path) -> None:
    """Heads of 12 numbers; the native kernels compute multiples of 8 from 16."""
    narrow = save_checkpoint(tmp_path / "narrow", hidden_size=48)
    (told,) = [text for text in resolved(narrow).warnings if "torch_sdpa" in text]
    assert "'full'" in told and "--numerics reference" in told
    named = resolved(narrow, attention_backend="torch_sdpa")
    assert named.waivers and not [text for text in named.warnings if "torch_sdpa" in text]
    asked = resolved(narrow, numerics="reference")
    assert asked.waivers == [] and not [text for text in asked.warnings if "torch_sdpa" in text]


def test_an_encoder_starts_without_that_warning() -> None:
    done = resolved(reference("bert").path)
    assert done.waivers and not [text for text in done.warnings if "torch_sdpa" in text]
