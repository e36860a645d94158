"""Weights replaced in place have the bits of an engine that was started with them; what does not fit changes nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from core import SharedTensors
from core.api.errors import CheckpointError, CoreError, EngineDeadError, UtilityError
from core.api.weights import WeightsState
from core_config.resolve import resolve
from core_frontend.llm import LLM
from core_runtime.executor.uniproc import UniprocExecutor
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.link.inproc import InprocClient
from tests.declared_models import FAMILIES as ROUNDED
from tests.inside import worker_of
from tests.kv.connector_rows import tiers_of
from tests.kv.conversations import INDEXED, MORE_STREAMS, checkpoint, other_weights
from tests.new_weights import SETTINGS, answers, answers_of, mixed, weights_of
from tests.tiny_models import save_checkpoint

Q = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.layers.2.input_layernorm.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
SOME = [Q, NORM, DOWN]
ROUNDS = '{"activation": "declared"}'


@pytest.fixture(scope="module")
def newer_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("newer_llama"), seed=11)


def engine(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), **{**SETTINGS, **settings})


def test_dummy_weights_are_replaced_by_those_of_a_checkpoint(newer_llama: Path) -> None:
    after = answers_of(newer_llama)
    with engine(newer_llama, load_format="dummy") as llm:
        assert answers(llm) != after
        llm.update_weights(path=str(newer_llama))
        assert answers(llm) == after


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"quantization": "mxfp4", "async_scheduling": True}, marks=pytest.mark.slow),
        pytest.param({"dtype": "float32", "async_scheduling": True}, marks=pytest.mark.slow),
        pytest.param({"quantization": "int8"}, marks=pytest.mark.slow),
        pytest.param({"quantization": "fp8"}, marks=pytest.mark.slow),
        pytest.param({"model_impl": "transformers"}, marks=pytest.mark.slow),
        pytest.param({"enforce_eager": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_new_checkpoint_has_the_bits_of_an_engine_started_with_it(
    settings: dict[str, Any], tiny_llama: Path, newer_llama: Path
) -> None:
    after = answers_of(newer_llama, **settings)
    with engine(tiny_llama, **settings) as llm:
        before = answers(llm)
        assert before != after
        assert llm.weight_version == ""
        assert llm.update_weights(path=str(newer_llama)) == "1"
        assert answers(llm) == after
        assert llm.update_weights(path=str(tiny_llama), weight_version="first") == llm.weight_version == "first"
        assert answers(llm) == before


@pytest.mark.slow
@pytest.mark.parametrize("frees_first", [False, True], ids=["beside", "frees first"])
@pytest.mark.parametrize("family", ["gemma3", "mixtral", "lfm2", *MORE_STREAMS, *INDEXED, *ROUNDED])
def test_other_families_too(family: str, frees_first: bool, tmp_path: Path) -> None:
    first = checkpoint(family, tmp_path / "first")
    second = other_weights(first, tmp_path / "second")
    settings = {"quantization_config": ROUNDS} if family in ROUNDED else {}
    with engine(first, enable_sleep_mode=True, **settings) as llm:
        before = answers(llm)
        after = answers_of(second, **settings)
        llm.update_weights(path=str(second), frees_first=frees_first)
        assert answers(llm) == after != before
        llm.sleep(2)
        llm.wake_up()
        assert answers(llm) == after
        llm.update_weights(path=str(first), frees_first=frees_first)
        assert answers(llm) == before


def test_some_tensors_of_files_and_of_memory(tiny_llama: Path, newer_llama: Path, tmp_path: Path) -> None:
    partly = answers_of(mixed(tmp_path / "partly", tiny_llama, newer_llama, SOME))
    alone = tmp_path / "alone.safetensors"
    save_file({name: weights_of(newer_llama)[name].to(torch.float64) for name in SOME}, alone)
    with engine(tiny_llama) as llm:
        before = answers(llm)
        llm.update_weights({"update_info": {"path": str(newer_llama), "names": SOME}})
        assert answers(llm) == partly
        llm.update_weights(path=str(tiny_llama))
        llm.update_weights(path=str(alone))
        assert answers(llm) == partly
        llm.update_weights(path=str(tiny_llama))
        newer = weights_of(newer_llama)
        llm.start_weight_update()
        for name in SOME:
            with SharedTensors({name: newer[name]}) as shared:
                llm.update_weights(shared.update())
        assert answers(llm) == before, "nothing is applied before it is finished"
        assert llm.finish_weight_update("gathered") == "gathered"
        assert answers(llm) == partly
        rest = {name: tensor for name, tensor in newer.items() if name not in SOME}
        with SharedTensors(rest) as shared:
            llm.update_weights(shared.update())
        assert answers(llm) == answers_of(newer_llama), "what came before is still there"


@pytest.mark.slow
def test_a_gguf_file_is_replaced_by_another(tmp_path: Path) -> None:
    from tests.real_models import smollm2_path

    with engine(smollm2_path()) as llm:
        before = answers(llm)
        llm.update_weights(path=str(smollm2_path()), names=["model.embed_tokens.weight"])
        assert answers(llm) == before


def test_weights_in_use_may_go_first(tiny_llama: Path, newer_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after = answers_of(newer_llama)
    with engine(tiny_llama) as llm:
        before = answers(llm)
        llm.update_weights(path=str(newer_llama), frees_first=True)
        assert answers(llm) == after
        with SharedTensors(weights_of(tiny_llama)) as shared:
            llm.start_weight_update()
            llm.update_weights(msgspec.structs.replace(shared.update(), frees_first=True))
            assert llm.finish_weight_update("back") == "back"
        assert answers(llm) == before

        worker = worker_of(llm)
        build, tries = worker.build_models, iter([True])

        def fails_once(*args: Any) -> Any:
            if next(tries, False):
                raise CheckpointError("the file is cut short")
            return build(*args)

        monkeypatch.setattr(worker, "build_models", fails_once)
        with pytest.raises(UtilityError, match="cut short"):
            llm.update_weights(path=str(newer_llama), frees_first=True)
        assert answers(llm) == before and llm.weight_version == "back"

        allocate, shortages = worker.allocate_cache, iter([True])

        def no_memory() -> None:
            if next(shortages, False):
                raise MemoryError("none is left")
            allocate()

        monkeypatch.setattr(worker, "allocate_cache", no_memory)
        with pytest.raises(MemoryError):
            llm.update_weights(path=str(newer_llama), frees_first=True)
        assert answers(llm) == before and llm.weight_version == "back"

        shortages = iter([True, True])
        with pytest.raises(EngineDeadError, match="Neither the new weights nor those before can be used: none is left"):
            llm.update_weights(path=str(newer_llama), frees_first=True)
        assert llm.is_sleeping(), "nothing is computed without weights"
        llm.wake_up()
        assert answers(llm) == before and llm.weight_version == "back"


@pytest.mark.slow
def test_the_memory_of_weights_that_go_first_is_not_taken_twice(tmp_path: Path) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "head_dim": 128}
    paths = [save_checkpoint(tmp_path / name, seed=seed, **shape) for seed, name in enumerate("ab")]
    weights = (paths[0] / "model.safetensors").stat().st_size // 2  # in bfloat16

    def peak(**fields: Any) -> int:
        """Bytes above those before the update."""
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
        begin = resident("VmRSS")
        llm.update_weights(**fields)
        return resident("VmHWM") - begin

    with engine(paths[0], dtype="bfloat16") as llm:
        llm.update_weights(path=str(paths[1]))
        assert peak(path=str(paths[0])) > weights
        assert peak(path=str(paths[1]), frees_first=True) < weights // 2


def resident(name: str) -> int:
    """Bytes of memory of this process."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024


def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(
    tiny_llama: Path, newer_llama: Path, tmp_path: Path
) -> None:
    newer = weights_of(newer_llama)
    wrong: list[tuple[dict[str, torch.Tensor], str]] = [
        ({"model.layers.1.self_attn.q_pro.weight": newer[Q]}, r"q_pro.weight' is none of .*Did you mean"),
        ({Q: newer[Q][:32]}, r"q_proj.weight' has shape \[32, 64\], expected \[64, 64\]"),
        ({NORM: newer[NORM], DOWN: newer[DOWN].to(torch.int8)}, r"is of type I8, expected F32"),
    ]
    larger = save_checkpoint(tmp_path / "larger", num_hidden_layers=4)
    with engine(tiny_llama) as llm:
        before = answers(llm)
        for tensors, sentence in wrong:
            path = tmp_path / "wrong.safetensors"
            save_file(tensors, path)
            with pytest.raises(UtilityError, match=sentence):
                llm.update_weights(path=str(path))
            with SharedTensors(tensors) as shared, pytest.raises(UtilityError, match=sentence):
                llm.update_weights(shared.update())
        for fields, sentence in (
            ({"path": str(larger)}, "its configuration says num_hidden_layers: 4, the engine's 3"),
            ({"path": str(tmp_path / "absent")}, "no such file or folder"),
            ({"path": str(newer_llama), "names": ["x"]}, "has no tensor 'x'"),
            ({"path": str(newer_llama), "names": []}, "no tensor is named"),
            ({"path": "a", "shared_memory": "b"}, "either `path` or `shared_memory`"),
            ({}, "either `path` or `shared_memory`"),
            ({"shared_memory": "../etc/passwd"}, "is no name of shared memory"),
            ({"shared_memory": "core-absent"}, "cannot be read"),
        ):
            with pytest.raises(UtilityError, match=sentence):
                llm.update_weights(**fields)
        with SharedTensors({NORM: newer[NORM]}) as shared:
            (place,) = shared.tensors
            beyond = msgspec.structs.replace(place, offset=1 << 20)
            update = msgspec.structs.replace(shared.update(), tensors=[place, place])
            with pytest.raises(UtilityError, match="named twice"):
                llm.update_weights(update)
            with pytest.raises(UtilityError, match="ends at byte"):
                llm.update_weights(msgspec.structs.replace(update, tensors=[beyond]))
        with pytest.raises(UtilityError, match="start one"):
            llm.finish_weight_update()
        for bad in ({"weight_version": "two words", "path": "x"}, {"unknown": 1}):
            with pytest.raises(CoreError, match=r"weight update: .*(unknown|weight_version)"):
                llm.update_weights(**bad)
        assert answers(llm) == before
        assert llm.weight_version == ""


@pytest.mark.slow
def test_files_that_are_replaced_are_read_when_asked(tiny_llama: Path, newer_llama: Path, tmp_path: Path) -> None:
    path = mixed(tmp_path / "model", tiny_llama, tiny_llama, [])
    with engine(path, enable_sleep_mode=True) as llm:
        before = answers(llm)
        save_file(weights_of(newer_llama), path / "model.safetensors", metadata={"format": "pt"})
        llm.sleep(level=2)
        with pytest.raises(UtilityError, match="has been changed since"):
            llm.wake_up()
        assert llm.is_sleeping()
        assert llm.collective_rpc("reload_weights") == ["1"]
        llm.wake_up()
        assert answers(llm) == answers_of(newer_llama) != before
        assert llm.reload_weights() == "1", "nothing has changed since"


@pytest.fixture
def tensors_file() -> Iterator[int]:
    descriptor = anonymous_file("test-tensors", 0)
    yield descriptor
    os.close(descriptor)


def test_the_next_engine_has_what_was_replaced_and_cached_pages_are_never_those_of_others(
    tiny_llama: Path, newer_llama: Path, tmp_path: Path, tensors_file: int
) -> None:
    given = {**SETTINGS, "model": str(tiny_llama), "kv_offloading_disk_path": str(tmp_path / "kv")}
    config = resolve(given, context="serve", environ={}).engine
    config = msgspec.structs.replace(config, tensors_file=tensors_file)
    client = InprocClient(config)
    with SharedTensors(weights_of(newer_llama)) as shared:
        client.core.call("update_weights", {"update": msgspec.to_builtins(shared.update("v2"))})
    state = client.core.config.weights
    assert (state.version, state.number) == ("v2", 1)
    names = {tiers_of(client.core.scheduler.kv.connectors).disk.directory.name}
    client.close()
    executor = UniprocExecutor(msgspec.structs.replace(config, weights=state))
    following = InprocClient(msgspec.structs.replace(config, weights=state), executor)
    assert following.core.config.weights == state
    names.add(tiers_of(following.core.scheduler.kv.connectors).disk.directory.name)
    following.close()
    first = InprocClient(config)
    assert first.core.config.weights == WeightsState()
    assert tiers_of(first.core.scheduler.kv.connectors).disk.directory.name not in names
    assert len(names) == 1
    first.close()
