"""What an engine tells of its steps: profiles, a line for each step, when prompts begin, totals across deaths."""

import gzip
import json
import logging
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from core.api.errors import ConfigError, CoreError, UtilityError
from core.api.messages import Begun, EngineOutput, EngineOutputs, EngineRequest, TokenColumns
from core.api.sampling_params import SamplingParams
from core.api.stats import SchedulerStats
from core_config.served.log_file import log_config
from core_frontend.llm import LLM
from core_frontend.stat_totals import STATES, StatTotals
from core_runtime.executor.profiling import ProgramProfiler
from core_runtime.models.layer_ranges import LayerRanges
from core_supervision.link.ledger import Ledger

PARAMS = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("ahead", [False, True])
def test_llm_is_profiled_and_its_steps_are_logged(
    ahead: bool, tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"profiler": "torch", "torch_profiler_dir": str(tmp_path / "traces"), "torch_profiler_with_stack": False}
    llm = LLM(
        str(tiny_llama),
        max_model_len=64,
        num_gpu_blocks_override=16,
        profiler_config=keys,
        enable_logging_iteration_details=True,
        async_scheduling=ahead,
    )
    with llm, caplog.at_level(logging.INFO, "core_observers.engine.step_log"):
        with pytest.raises(UtilityError, match="start one first"):
            llm.stop_profile()
        assert llm.start_profile() == str(tmp_path / "traces")
        with pytest.raises(UtilityError, match="already"):
            llm.start_profile()
        (output,) = llm.generate({"prompt_token_ids": [5, 6, 7]}, PARAMS, use_tqdm=False)
        path = llm.stop_profile()
        stats = llm.stats()
    trace = json.loads(gzip.decompress(Path(path).read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    assert any(str(name).startswith("aten::") for name in names)
    lines = [record.getMessage() for record in caplog.records]
    assert "1 prompts with 3 tokens, 0 decodes with 0 tokens" in lines[0]
    assert "0 prompts with 0 tokens, 1 decodes with 1 tokens" in lines[1]
    times = output.metrics
    assert 0.0 < times.arrival_time <= times.first_scheduled_time <= times.first_token_time <= times.last_token_time
    num_steps = len(lines)
    assert sum(stats.step_sizes[:-1]) == num_steps and stats.step_sizes[-1] == 3 + num_steps - 1


def test_chosen_steps_are_profiled(tiny_llama: Path, tmp_path: Path) -> None:
    keys = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "torch_profiler_with_stack": False}
    window = {"delay_iterations": 1, "max_iterations": 1}
    with LLM(str(tiny_llama), max_model_len=64, num_gpu_blocks_override=16, profiler_config=keys | window) as llm:
        assert llm.start_profile() == "after 1 steps"
        llm.generate({"prompt_token_ids": [5, 6, 7]}, PARAMS, use_tqdm=False)
        for writing in [thread for thread in threading.enumerate() if thread.name == "core-profile"]:
            writing.join()
        assert len(list(tmp_path.glob("*.gz"))) == 1, "it has ended by itself"
        path = Path(llm.stop_profile())
    assert list(tmp_path.glob("*.gz")) == [path]


def test_blocks_are_ranges_with_a_table_of_their_times(tiny_llama: Path, tmp_path: Path) -> None:
    keys = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "torch_profiler_use_gzip": False}
    settings = {"max_model_len": 64, "num_gpu_blocks_override": 16, "enable_layerwise_nvtx_tracing": True}
    with LLM(str(tiny_llama), profiler_config=keys, **settings) as llm:
        llm.start_profile()
        llm.generate({"prompt_token_ids": [5, 6, 7]}, PARAMS, use_tqdm=False)
        path = Path(llm.stop_profile())
        num_steps = sum(llm.stats().step_sizes[:-1])
    names = Counter(event.get("name") for event in json.loads(path.read_text())["traceEvents"])
    blocks = sorted(name for name in names if str(name).startswith("block "))
    assert blocks == [f"block {number}" for number in range(len(blocks))] and len(blocks) > 1
    table = path.with_name(path.name.replace(".pt.trace.json", ".layers.txt")).read_text().splitlines()
    rows = [line.split() for line in table[1:]]
    assert [(f"block {row[0]}", int(row[1])) for row in rows] == [(name, num_steps) for name in blocks]
    assert all(float(row[2]) > 0.0 for row in rows)
    operations = path.with_name(path.name.replace(".pt.trace.json", ".operations.txt")).read_text()
    assert "block 0" in operations and "aten::" in operations


def test_ranges_are_balanced_over_a_step_that_fails() -> None:
    class Nvtx:
        calls: ClassVar[list[str]] = []

        def range_push(self, name: str) -> None:
            self.calls.append(name)

        def range_pop(self) -> None:
            self.calls.append("pop")

    ranges = LayerRanges(Nvtx())
    ranges.begin(0)
    ranges.begin(1)  # the step fails here, and the next one begins
    ranges.begin(0)
    ranges.end()
    ranges.end()
    assert Nvtx.calls == ["block 0", "pop", "block 1", "pop", "block 0", "pop"]


def test_a_program_around_the_process_is_told_when_to_record() -> None:
    calls: list[str] = []
    runtime = SimpleNamespace(
        cudaProfilerStart=lambda: calls.append("start"), cudaProfilerStop=lambda: calls.append("stop")
    )
    profiler = ProgramProfiler(runtime)
    with pytest.raises(UtilityError, match="start one first"):
        profiler.stop()
    place = profiler.start()
    with pytest.raises(UtilityError, match="already"):
        profiler.start()
    profiler.stop()
    assert calls == ["start", "stop"] and profiler.written() == place


def test_a_program_needs_a_cuda_device(tiny_llama: Path) -> None:
    with pytest.raises(CoreError, match="no CUDA device is here; choose torch"):
        LLM(str(tiny_llama), max_model_len=64, profiler_config={"profiler": "cuda"})


def test_without_a_profiler_that_is_said(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), max_model_len=64, num_gpu_blocks_override=16)
    with llm, pytest.raises(UtilityError, match=r"--profiler-config.profiler torch"):
        llm.start_profile()
    with pytest.raises(ConfigError, match="torch_profiler_dir"):
        LLM(str(tiny_llama), profiler_config={"profiler": "torch"})


def test_the_begin_of_a_prompt_comes_with_its_first_output() -> None:
    ledger = Ledger(0)
    requests = [EngineRequest(name, 0, [1], SamplingParams(), seed=1) for name in ("a", "b")]
    ledger.admit(requests)
    first, second = (request.handle for request in requests)
    stats = SchedulerStats()
    assert (
        ledger.accept(EngineOutputs(0, [], stats, begun=[Begun(first, 5.0), Begun(second, 6.0), Begun(99, 7.0)])) == []
    )
    handles = first.to_bytes(8, "little")
    columns = TokenColumns(handles, bytes(4), bytes(4))
    told = ledger.accept(EngineOutputs(0, [EngineOutput("b", 0, 0, [1], handle=second)], stats, columns))
    assert [(output.request_id, output.begin_time) for output in told] == [("a", 5.0), ("b", 6.0)]
    (later,) = ledger.accept(EngineOutputs(0, [EngineOutput("b", 0, 1, [1], handle=second)], stats))
    assert later.begin_time == 0.0


def test_totals_go_on_when_another_engine_begins_again() -> None:
    totals = StatTotals()
    before = SchedulerStats(
        num_running=4,
        num_deferred=1,
        num_preemptions=2,
        spec_accepted_by_place=[3, 1],
        spec_steps_on={2: 5},
        spec_steps_off={"load": 1},
        spec_draft_seconds=0.5,
        step_sizes=[1, 2],
    )
    totals.take(before)
    totals.end_engine(num_waiting=4)
    assert (totals.latest.num_running, totals.latest.num_waiting, totals.latest.num_deferred) == (0, 4, 0)
    totals.take(SchedulerStats())
    assert totals.latest.num_preemptions == 2 and totals.latest.step_sizes == [1, 2]
    totals.take(
        SchedulerStats(
            spec_accepted_by_place=[1], spec_steps_on={2: 1, 3: 1}, spec_draft_seconds=0.25, step_sizes=[4, 4]
        )
    )
    latest = totals.latest
    assert (latest.spec_accepted_by_place, latest.step_sizes) == ([4, 1], [5, 6])
    assert (latest.spec_steps_on, latest.spec_steps_off, latest.spec_draft_seconds) == ({2: 6, 3: 1}, {"load": 1}, 0.75)
    assert set(STATES) <= set(SchedulerStats.__struct_fields__)


@pytest.mark.parametrize("text", ["version: 2", "- a", "{", "\x00", "version: 1\nhandlers: ["])
def test_log_files_that_are_none_are_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log.yaml"
    path.write_text(text)
    for wrong in (path, tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(ConfigError, match="--log-config-file"):
            log_config(str(wrong))
