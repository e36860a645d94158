"""One operation may have another order of providers than all others; tokens follow, and the name of the numerics tells."""

from pathlib import Path

import pytest
import torch

from core import LLM
from core.api.errors import ConfigError
from core.api.reason import Reason
from core_commands.cli.kernels import kernels as command
from core_config.resolve import resolve
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.operation_order import apply_order
from core_runtime.layers.reference import ReferenceKernels
from core_runtime.specs.operation_order import as_order, order_name
from tests.inside import worker_of


class Marks(ReferenceKernels):
    """Norms and additions that leave a mark. serves: the operations."""

    def __init__(self, mark, serves=("rms_norm", "add", "add_rms_norm")):
        self.mark = mark
        self.serves = serves

    def supports(self, query):
        return [] if query.op in self.serves else [Reason("op", str(self.serves), query.op)]

    def rms_norm(self, x, weight, eps, out):
        out.fill_(self.mark)

    def add(self, x, residual):
        residual.fill_(self.mark)


def marks(order, **providers):
    """What the first provider of each operation leaves: of norms, and of additions. 0: the reference."""
    apply_order(providers, as_order(order), "cpu")
    kernels = KernelSet(list(providers.values()))
    out, residual = torch.zeros(1, 4), torch.zeros(1, 4)
    kernels.rms_norm(torch.zeros(1, 4), torch.ones(4), 1e-6, out)
    kernels.add(torch.zeros(1, 4), residual)
    return out[0, 0].item(), residual[0, 0].item()


def test_an_order_changes_one_operation():
    assert marks({}, a=Marks(1.0), b=Marks(2.0)) == (1.0, 1.0)
    assert marks({"rms_norm": "b"}, a=Marks(1.0), b=Marks(2.0)) == (2.0, 1.0)
    assert marks({"rms_norm": ["b", "a"], "add": ["a"]}, a=Marks(1.0), b=Marks(2.0)) == (2.0, 1.0)
    assert marks({"rms_norm": "torch", "add": "native"}, a=Marks(1.0), b=Marks(2.0)) == (0.0, 0.0)


def test_a_provider_that_does_not_serve_it_is_passed_over():
    assert marks({"rms_norm": "c,b"}, a=Marks(1.0), b=Marks(2.0), c=Marks(3.0, ("add",))) == (2.0, 1.0)
    assert marks({"rms_norm": "c"}, a=Marks(1.0), b=Marks(2.0), c=Marks(3.0, ("add",))) == (1.0, 1.0)


def test_operations_that_are_joined_stay_with_one_provider():
    """Two operations in one call need one provider for both: another one's norm would have other bits."""
    providers = {"a": Marks(1.0), "b": Marks(2.0)}
    apply_order(providers, {"rms_norm": ("b",)}, "cpu")
    assert KernelSet(list(providers.values())).add_rms_norm is None
    assert KernelSet([Marks(1.0), Marks(2.0)]).add_rms_norm is not None


def test_the_engine_follows_and_its_numerics_tell(tiny_llama: Path) -> None:
    given = {"model": str(tiny_llama), "max_model_len": 64, "num_gpu_blocks_override": 16}
    order = {"rms_norm": "torch"}
    with LLM(**given, ir_op_priority=order) as llm:
        kernels = worker_of(llm).runtime.kernels
        assert isinstance(kernels, KernelSet) and kernels.provider_of("rms_norm") == "reference"
        assert kernels.provider_of("rotary") != "reference"
        numerics = worker_of(llm).numerics
    assert order_name(as_order(order)) in numerics
    done = resolve({**given, "ir_op_priority": order}, context="llm", environ={})
    assert done.numerics == numerics
    by = {name: row.by for row in done.computed() for name in row.operations}
    assert by["rms_norm"] == "plain torch" != by["rotary"]


def test_wrong_names_are_refused_with_those_that_are_there(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"rms_norm vllm_c: it is none of the providers here, .*torch"):
        LLM(str(tiny_llama), ir_op_priority={"rms_norm": "vllm_c"})


def test_kernels_list_names_the_providers_of_each_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["list", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cpu: ") and lines[0].endswith(", torch")
    rows = {line.split()[0]: line for line in lines[1:] if line.startswith("  ")}
    assert rows["rms_norm"].endswith("cpu_native, torch") and "layer_norm_heads" in rows
    command(["list", "--device", "cpu", "--kernels", "inductor,auto"])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  rms_norm ")]
    assert row.split(maxsplit=1)[1].startswith("inductor, cpu_native")
    with pytest.raises(ConfigError, match="unexpected"):
        command(["list", "some-model"])
