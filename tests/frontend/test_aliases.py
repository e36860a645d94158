"""vLLM's module paths: every row leads to what it names, nothing real is hidden, and nothing is imported early."""

import re
import runpy
import subprocess
import sys
from importlib import import_module

import pytest

import core
import core_compat as compat
from core_compat.aliases import NAMES_NOT_SERVED, NOT_SERVED, OFFERED, PACKAGES, WHOLE
from core_config.arguments.sources import merge
from core_frontend.library.chores import print_embeddings


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("module", sorted({row[0] for row in OFFERED if row[2] != WHOLE}))
def test_every_name_of_a_row_can_be_imported(package: str, module: str) -> None:
    found = import_module(package + module)
    for path, home, names in OFFERED:
        if path == module:
            for name in names.split():
                assert getattr(found, name) is getattr(import_module(home), name)
                assert name in dir(found)


def test_names_of_the_package_can_be_imported() -> None:
    for name in core.__all__:
        assert getattr(compat, name) is getattr(core, name) is not None
    for name, reason in NAMES_NOT_SERVED.items():
        with pytest.raises(ImportError, match=re.escape(reason)):
            getattr(compat, name)
    with pytest.raises(AttributeError, match="has no attribute 'LMM'; it offers LLM"):
        _ = compat.LMM


def test_a_module_that_is_there_as_a_whole_is_asked_for_every_name() -> None:
    exec(
        "from core_compat.config import PoolerConfig as a; from core_config import PoolerConfig as b; assert a is b", {}
    )
    exec("from core_compat.version import __version__ as a; from core import __version__ as b; assert a == b", {})
    with pytest.raises(ImportError, match="SchedulerConfig: its keys are arguments of their own here"):
        exec("from core_compat.config import SchedulerConfig", {})


def test_importing_core_alone_makes_no_module_path() -> None:
    program = (
        "import importlib, sys\n"
        "before = [*sys.meta_path]\n"
        "import core\n"
        "assert core.SamplingParams and sys.meta_path == before\n"
        "try:\n    import core.sampling_params\nexcept ModuleNotFoundError as error:\n    print(error)\n"
        "import core_compat\n"
        "assert len(sys.meta_path) == len(before) + 1\n"
        "import core.sampling_params\n"
        "assert core.sampling_params.SamplingParams is core.SamplingParams\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "No module named 'core.sampling_params'\n", done.stderr


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from core.sampling_params import Nothing", {})
    with pytest.raises(AttributeError, match="it offers BeamSearchParams, RequestOutputKind, SamplingParams"):
        _ = import_module("core.sampling_params").Nothing
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'core.no_such_thing'"):
        import_module("core.no_such_thing")
    for module, reason in NOT_SERVED.items():
        for package in PACKAGES:
            with pytest.raises(
                ModuleNotFoundError, match=re.escape(f"There is no {package}{module}") + ".*" + re.escape(reason)
            ):
                import_module(f"{package}{module}.part")
    for statement in ("import core.utils.gpu_sync_debug", "from core.distributed import get_world_group"):
        with pytest.raises(ModuleNotFoundError, match=r"There is no core\.\S+: docs/scripts\.md says which"):
            exec(statement, {})
    with pytest.raises(ModuleNotFoundError, match=r"There is no core\.model_executor\.layers: models are plugins"):
        exec("from core.model_executor import layers", {})


def test_an_alias_imports_nothing_before_it_is_asked() -> None:
    program = (
        "import sys, core, core_compat, core.entrypoints.llm, core.sampling_params\n"
        "from core.sampling_params import SamplingParams\n"
        "assert SamplingParams is core.SamplingParams\n"
        "print(sorted(set(sys.modules) & {'torch', 'transformers', 'core_frontend.llm', 'core.args'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_objects_of_keys_are_what_the_argument_takes() -> None:
    from core_config import PoolerConfig, ProfilerConfig

    assert PoolerConfig(pooling_type="MEAN") == {"pooling_type": "MEAN"}
    merged = merge({"pooler_config": PoolerConfig(pooling_type="CLS"), "profiler_config": ProfilerConfig()}, {})
    assert merged.problems == [] and merged.value("pooler_config") == {"pooling_type": "CLS"}
    from core_config import EPLBConfig, ReasoningConfig, WeightTransferConfig

    assert EPLBConfig(window_size=1000) == {"window_size": 1000}
    assert ReasoningConfig(think="a") == {"think": "a"} and WeightTransferConfig(backend="file") == {"backend": "file"}
    with pytest.raises(ImportError, match="SchedulerConfig: its keys are arguments of their own here"):
        from core_config import SchedulerConfig  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name"):
        from core_config import NoSuchName  # noqa: F401


def test_vectors_are_printed_short(capsys: pytest.CaptureFixture[str]) -> None:
    print_embeddings([0.5] * 9)
    print_embeddings([1.0], "Short")
    print_embeddings([[1.0, 2.0], [3.0, 4.0]], "Rewards")
    assert capsys.readouterr().out.splitlines() == [
        "Embeddings: [0.5000, 0.5000, 0.5000, 0.5000, ...] (size=9)",
        "Short: [1.0000] (size=1)",
        "Rewards: [[1.0000, 2.0000], [3.0000, 4.0000]] (size=2)",
    ]


def test_the_older_start_of_a_server_is_core_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["api_server", "--model", "/nowhere", "--max-model-len", "x"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("core.entrypoints.openai.api_server", run_name="__main__")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "is last in release 0.3; use `core serve`" in said and "--max-model-len x" in said
    from core.entrypoints.llm import LLM  # vLLM's other modules of the package are where they were

    assert LLM.__name__ == "LLM"
