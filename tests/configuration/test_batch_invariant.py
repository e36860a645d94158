"""`--batch-invariant`, and what `core config explain` says about who computes what, for a GPU that is not there."""

import json

import pytest

from core.api.errors import ConfigError
from core.commands.main import main
from core_config.resolve import resolve

PLATFORM = """
from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl

CONTRACT, KIND = 1, "platform"


@hookimpl
def core_spec():
    roundings = ["none", "bf16", "int8_row"]
    capabilities = {"dtypes": ["bfloat16", "float32"], "device_graphs": True, "input_roundings": roundings}
    return PluginSpec(name="absent", capabilities=capabilities)


@hookimpl
def core_probe():
    return Probe((Device("cuda:0", "a GPU", 80 << 30, profile="sm_90"),))


@hookimpl
def core_propose(view):
    return {"attention_backend": Proposal(["triton"], "as on GPUs")}
"""


@pytest.fixture
def gpu(tmp_path):
    """Arguments for a machine with a GPU."""
    file = tmp_path / "absent.py"
    file.write_text(PLATFORM)
    return {"plugins": str(file), "device": "absent", "dtype": "bfloat16"}


def resolved(model, **arguments):
    return resolve({"model": str(model), **arguments}, context="llm", environ={})


def rows_of(done):
    return {name: row for row in done.computed() for name in row.operations}


def test_libraries_compute_large_products_of_a_gpu_and_the_user_is_told(tiny_llama, gpu):
    done = resolved(tiny_llama, **gpu)
    assert done.engine.plugins.kernels == ("cublas", "scaled_mm", "triton")
    (waiver,) = done.waivers
    assert "cublas" in waiver and "--batch-invariant" in waiver
    (warning,) = [text for text in done.warnings if "cublas" in text]
    assert "above 64 rows" in warning and "--kernels cublas,auto" in warning
    rows = rows_of(done)
    assert (rows["bfloat16 products"].by, rows["bfloat16 products"].same_bits) == ("cublas", "no, above 64 rows")
    assert rows["bfloat16 products"].others == ("triton (yes)", "cublas_invariant (yes)")
    assert (rows["rms_norm"].by, rows["rms_norm"].same_bits) == ("triton", "yes")
    assert (rows["attention.full"].by, rows["attention.full"].same_bits) == ("triton", "yes")


def test_one_flag_restores_the_promise(tiny_llama, gpu):
    done = resolved(tiny_llama, **gpu, batch_invariant=True)
    assert done.engine.plugins.kernels == ("triton",)
    assert done.waivers == [] and not [text for text in done.warnings if "cublas" in text]
    (lost,) = [one for s in done.selections if s.kind == "kernels" for one in s.candidates if one.name == "cublas"]
    assert lost.verdict == "refused" and "batch_invariant" in lost.reasons[0]
    row = rows_of(done)["bfloat16 products"]
    assert row.by == "triton" and "cublas (no, above 64 rows)" in row.others


def test_cublas_in_one_order_keeps_the_promise(tiny_llama, gpu):
    done = resolved(tiny_llama, **gpu, batch_invariant=True, kernels=["cublas_invariant", "auto"])
    assert done.engine.plugins.kernels == ("cublas_invariant", "triton") and done.waivers == []
    assert rows_of(done)["bfloat16 products"].same_bits == "yes"


def test_who_names_the_library_is_not_warned(tiny_llama, gpu):
    done = resolved(tiny_llama, **gpu, kernels=["cublas", "auto"])
    assert done.waivers and not [text for text in done.warnings if "cublas" in text]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"kernels": ["cublas", "auto"]}, ["--batch-invariant: kernels plugin 'cublas'", "--plugins no:cublas"]),
        ({"attention_backend": "torch_sdpa"}, ["--batch-invariant: attention plugin 'torch_sdpa'"]),
        ({"plugins": "no:cpu_native"}, ["--batch-invariant: kernels: no plugin fits"]),
    ],
)
def test_what_cannot_keep_it_is_refused(tiny_llama, gpu, arguments, words):
    device = gpu if "kernels" in arguments else {"device": "cpu"}
    with pytest.raises(ConfigError) as raised:
        resolved(tiny_llama, **device, **arguments, batch_invariant=True)
    assert all(word in str(raised.value) for word in words)


def test_processors_keep_it_without_being_asked(tiny_llama):
    plain, asked = resolved(tiny_llama, device="cpu"), resolved(tiny_llama, device="cpu", batch_invariant=True)
    assert plain.engine.plugins.kernels == asked.engine.plugins.kernels
    assert plain.numerics == asked.numerics


def test_reference_numerics_keep_it_too(tiny_llama):
    done = resolved(tiny_llama, device="cpu", plugins="no:cpu_native", numerics="reference", batch_invariant=True)
    assert done.waivers == []
    assert rows_of(done)["rms_norm"].same_bits == "yes"


def test_both_forms_of_explain_show_the_table(tiny_llama, gpu, capsys):
    words = [
        "config",
        "explain",
        str(tiny_llama),
        "--device",
        "absent",
        "--dtype",
        "bfloat16",
        "--plugins",
        gpu["plugins"],
    ]
    assert main([*words, "--json"]) == 0
    (products,) = [
        row for row in json.loads(capsys.readouterr().out)["operations"] if row["operations"] == ["bfloat16 products"]
    ]
    assert products["by"] == "cublas" and products["same_bits"] == "no, above 64 rows"
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "same bits in every batch" in shown and "bfloat16 products" in shown
