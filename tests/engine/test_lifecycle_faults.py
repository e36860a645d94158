"""Pauses, sleep and updates together with deaths, other clients and failures: nobody is halted for ever, nothing is mixed."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine.lives import Death, Lives
from fakes import make_config

from core.api.errors import EngineDeadError, UtilityError
from core_runtime.executor.reloading.memory_tensors import PAGE, KeptTensors
from core_runtime.specs.checkpoint import TensorInfo
from core_supervision.link.anonymous_file import anonymous_file
from tests.kv.connector_rows import tiers_of, with_cache


@pytest.fixture
def lives() -> Iterator[Lives]:
    engines = Lives()
    yield engines
    engines.close()


def asleep(lives: Lives) -> None:
    """Asleep, with a request that goes on later."""
    lives.add("kept")
    lives.core.step()
    lives.call("sleep", mode="keep")
    lives.run()


def test_a_death_during_sleep_leaves_an_engine_that_answers(lives: Lives) -> None:
    lives.reloader.hooks["release"] = lives.fatal
    with pytest.raises(Death):
        lives.call("sleep")
    lives.die()
    assert lives.state()["state"] == "running"
    assert lives.answers()
    lives.call("sleep")
    lives.die()
    assert lives.state()["is_sleeping"], "one that was complete goes on"
    assert lives.call("wake_up")["state"] == "running"
    assert lives.answers()


def test_a_death_while_it_wakes_leaves_one_that_sleeps_and_can_be_woken(lives: Lives) -> None:
    lives.call("sleep", level=2)
    lives.reloader.hooks["restore"] = lives.fatal
    with pytest.raises(Death):
        lives.call("wake_up")
    lives.die()
    state = lives.state()
    assert (state["is_sleeping"], state["sleep_level"]) == (True, 2)
    assert "sleeps since 20" in state["halted_by"] and "/wake_up" in state["halted_by"]
    lives.call("wake_up")
    assert lives.answers()


def test_a_death_before_the_next_engine_sleeps_leaves_one_that_sleeps(lives: Lives) -> None:
    lives.call("sleep", level=2)
    lives.prepare = lambda reloader: reloader.hooks.update(release=lives.fatal)
    with pytest.raises(Death):
        lives.die()
    lives.prepare = None
    lives.die()
    state = lives.state()
    assert (state["is_sleeping"], state["sleep_level"]) == (True, 2)
    lives.call("wake_up")
    assert lives.answers()


def test_a_wait_ends_with_the_engine_and_a_pause_does_not(lives: Lives) -> None:
    lives.add("long")
    lives.core.step()
    assert lives.call("pause", client=3, mode="wait", hold=7)["state"] == "draining"
    lives.die()
    assert lives.state()["state"] == "running"
    assert lives.answers()
    lives.call("pause", mode="keep")
    lives.die()
    assert lives.state()["halted_by"].startswith("The operator has paused the engine since 20")
    lives.call("resume", client=2)
    assert lives.answers()


def test_a_client_that_is_gone_lets_go_and_others_hold_on(lives: Lives) -> None:
    lives.add("a")
    lives.core.step()
    for client in (1, 2):
        lives.call("pause", client=client, mode="wait", hold=1)
    lives.add("b")
    assert set(lives.run()) == {"a"}
    assert lives.call("lifecycle", client=1, hold=1)["hold"] == "reached"
    lives.core.client_gone(1)
    assert lives.state()["state"] == "paused", "the other call goes on waiting"
    lives.core.client_gone(2)
    assert set(lives.run()) == {"b"}


def test_one_pause_and_one_resume_are_enough_whoever_asks(lives: Lives) -> None:
    lives.call("pause", client=1, mode="keep")
    lives.call("resume", client=2)
    lives.call("pause", client=1, mode="wait", hold=1)
    lives.run()
    lives.call("update_weights", client=1, update={"path": "x"}, mode="wait", hold=1)
    lives.call("let_go", client=1, hold=1)
    assert lives.answers()


def test_a_pause_that_was_waited_for_is_the_operators_once_it_is_reached(lives: Lives) -> None:
    lives.add("a")
    lives.core.step()
    lives.call("pause", client=1, mode="wait", hold=1)
    with pytest.raises(UtilityError, match="Requests still run"):
        lives.call("keep_pause", client=1, hold=1)
    lives.run()
    lives.call("keep_pause", client=1, hold=1)
    lives.core.client_gone(1)
    assert lives.state()["is_paused"] and lives.state()["is_halted"]
    lives.call("resume")
    with pytest.raises(UtilityError, match="ended before"):
        lives.call("keep_pause", client=1, hold=1)


@pytest.mark.parametrize("paused_by_another", [False, True])
def test_a_caller_that_hangs_up_in_the_last_moment_has_not_paused(lives: Lives, paused_by_another: bool) -> None:
    lives.call("pause", client=1, mode="wait", hold=1)
    lives.call("keep_pause", client=1, hold=1)
    if paused_by_another:
        lives.call("pause", mode="keep")
    lives.call("let_go", client=1, hold=1)
    assert lives.state()["is_paused"] == paused_by_another


@pytest.mark.parametrize("method", ["pause", "sleep", "update_weights"])
def test_a_wait_never_has_a_sleeping_engine_compute(lives: Lives, method: str) -> None:
    asleep(lives)
    with pytest.raises(UtilityError, match=r"held and cannot end: The engine sleeps since .*wake_up"):
        lives.call("pause", client=1, mode="wait", hold=1)
    if method == "update_weights":
        with pytest.raises(UtilityError, match="Requests still run"):
            lives.call(method, client=1, update={"path": "x"}, mode="wait")
    elif method == "sleep":
        assert lives.call("sleep", mode="wait")["is_sleeping"], "a sleep that is repeated has happened"
    assert not lives.run(), "nothing is computed"
    lives.call("wake_up")
    assert "kept" in lives.run()
    lives.call("sleep")
    assert lives.call("pause", client=1, mode="wait", hold=2)["hold"] == "reached", "no request is left to end"


def test_a_wait_beside_a_pause_is_refused_and_does_not_end_it(lives: Lives) -> None:
    lives.add("a")
    lives.core.step()
    lives.call("pause", mode="keep")
    with pytest.raises(UtilityError, match="The operator has paused"):
        lives.call("pause", client=1, mode="wait", hold=1)
    assert not lives.run()
    lives.call("resume")
    assert "a" in lives.run()


def test_a_pause_halts_at_once_while_another_call_drains(lives: Lives) -> None:
    lives.add("a")
    lives.core.step()
    lives.call("pause", client=1, mode="wait", hold=1)
    starts: list[bool] = []
    start_over = lives.core.sequences.start_over
    lives.core.sequences.start_over = lambda: (starts.append(True), start_over())[1]  # type: ignore[method-assign]
    state = lives.call("pause", mode="keep", clear_cache=True)
    assert state["is_halted"] and starts, "the cache is cleared, too"
    assert not lives.run()
    assert lives.call("lifecycle", client=1, hold=1)["hold"] == "drains"
    lives.call("resume")
    assert lives.call("lifecycle", client=1, hold=1)["hold"] == "ended"
    assert "a" in lives.run()


def test_a_sleep_in_between_only_delays_what_is_waited_for(lives: Lives) -> None:
    lives.add("a")
    lives.core.step()
    lives.call("pause", client=1, mode="wait", hold=1)
    lives.call("sleep", mode="keep")
    assert not lives.run()
    assert lives.call("lifecycle", client=1, hold=1)["hold"] == "drains"
    assert lives.call("wake_up")["state"] == "draining"
    assert "a" in lives.run()
    assert lives.call("lifecycle", client=1, hold=1)["hold"] == "reached"


def test_an_update_in_parts_is_lost_with_the_engine_and_never_applied_in_part(lives: Lives) -> None:
    lives.call("start_weight_update", client=4)
    lives.call("update_weights", update={"path": "part1"})
    lives.die()
    for method, arguments in (("update_weights", {"update": {"path": "part2"}}), ("finish_weight_update", {})):
        with pytest.raises(UtilityError, match="lost with the engine; start it again"):
            lives.call(method, **arguments)
    lives.die()
    assert "lost with the engine" in lives.state()["gathering_lost"], "a second death changes nothing"
    assert lives.state()["weight_version"] == "" and lives.answers()
    lives.call("start_weight_update")
    for part in ("part1", "part2"):
        lives.call("update_weights", update={"path": part})
    assert lives.call("finish_weight_update", weight_version="v2")["weight_version"] == "v2"
    lives.call("update_weights", update={"path": "later"})
    assert lives.state()["weight_version"] == "2"


def test_parts_of_an_update_that_failed_are_not_applied_one_by_one(lives: Lives) -> None:
    lives.call("start_weight_update")
    lives.call("update_weights", update={"path": "part1"})
    lives.reloader.hooks["apply"] = lambda: (_ for _ in ()).throw(MemoryError("none left"))
    with pytest.raises(MemoryError):
        lives.call("finish_weight_update")
    with pytest.raises(UtilityError, match="dropped; start it again"):
        lives.call("update_weights", update={"path": "part2"})
    assert lives.state()["state"] == "running" and lives.answers()


@pytest.mark.parametrize("moment", ["apply", "applied"])
def test_a_death_during_an_update_leaves_the_weights_before(lives: Lives, moment: str) -> None:
    lives.call("update_weights", update={"path": "one"})
    lives.reloader.hooks[moment] = lives.fatal
    with pytest.raises(Death):
        lives.call("update_weights", update={"path": "two"})
    lives.die()
    assert lives.state()["weight_version"] == "1"
    assert [source.path for source in lives.core.config.weights.sources] == ["one"]
    assert lives.answers()


def test_tensors_of_the_recorded_weights_stay_until_newer_ones_are_recorded(lives: Lives) -> None:
    lives.call("update_weights", update={"path": "one"})
    assert lives.reloader.staged == ["one"]
    lives.storage.is_full = True
    with pytest.raises(UtilityError, match="nothing has changed"):
        lives.call("update_weights", update={"path": "two"})
    lives.storage.is_full = False
    lives.reloader.hooks["applied"] = lambda: setattr(lives.storage, "is_full", True)
    lives.call("update_weights", update={"path": "three"})
    assert lives.state()["weight_version"] == "2"
    assert lives.reloader.staged == ["one"], "the next engine would begin with these"
    lives.storage.is_full = False
    lives.call("pause")
    lives.run()
    assert lives.reloader.staged == ["three"], "the record of the pause has the new weights"


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_resume_is_recorded_as_soon_as_there_is_memory_for_it(lives: Lives, is_idle: bool) -> None:
    lives.call("pause")
    lives.storage.is_full = True
    assert lives.call("resume")["state"] == "running"
    lives.run()
    assert lives.core.idle(), "it tries again after a while"
    lives.storage.is_full = False
    if is_idle:
        lives.core.idle()
    else:
        lives.add("next")
        lives.run()
    lives.die()
    assert lives.state()["state"] == "running"
    assert lives.answers()


def test_tensors_go_when_only_the_record_of_the_end_of_an_update_has_the_new_weights(lives: Lives) -> None:
    lives.call("update_weights", update={"path": "one"})
    lives.reloader.hooks["applied"] = lambda: setattr(lives.storage, "fails_once", True)
    lives.call("update_weights", update={"path": "two"})
    assert lives.reloader.staged == ["two"]


def with_disk(path: Path) -> dict[str, Any]:
    config = with_cache(make_config(), block_size=4, disk_path=str(path), disk_bytes=1 << 20, host_bytes=1 << 16)
    return {"cache": config.cache, "plugins": config.plugins}


def test_a_disk_that_fails_leaves_no_cache_of_the_weights_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lives = Lives(**with_disk(tmp_path / "kv"))
    lives.add("same")
    lives.run()
    lives.add("same")
    assert lives.run()["same"][0].num_cached_tokens > 0
    (tmp_path / "kv").rename(tmp_path / "gone")
    (tmp_path / "kv").write_text("")
    with caplog.at_level(logging.ERROR):
        assert lives.call("update_weights", update={"path": "x"})["weight_version"] == "1"
    assert "without the disk behind the KV cache" in caplog.text
    lives.add("same")
    assert lives.run()["same"][0].num_cached_tokens == 0
    tiers = tiers_of(lives.core.scheduler.kv.connectors)
    assert tiers.host is not None and tiers.disk is None, "host memory goes on"
    (tmp_path / "kv").unlink()
    lives.call("update_weights", update={"path": "y"})
    tiers = tiers_of(lives.core.scheduler.kv.connectors)
    assert tiers.disk is not None, "a disk that is back is used again"
    lives.add("same")
    assert lives.run()["same"][0].num_cached_tokens == 0
    lives.close()


def test_a_failed_exchange_leaves_no_cache_whose_memory_is_gone(lives: Lives) -> None:
    lives.add("same")
    lives.run()
    lives.reloader.hooks["apply"] = lambda: (_ for _ in ()).throw(OSError(5, "Input/output error"))
    with pytest.raises(UtilityError, match="Input/output"):
        lives.call("update_weights", update={"path": "x", "frees_first": True})
    lives.add("same")
    assert lives.run()["same"][0].num_cached_tokens == 0


def test_a_cache_that_cannot_be_dropped_ends_the_engine(lives: Lives) -> None:
    def broken() -> None:
        raise RuntimeError("no memory for a new table")

    lives.add("a")
    lives.core.step()
    lives.core.sequences.start_over = broken  # type: ignore[method-assign]
    with pytest.raises(EngineDeadError, match="could not be dropped"):
        lives.call("update_weights", update={"path": "x"})
    assert not lives.run(), "nothing is computed with a cache of other weights"
    lives.die()
    assert lives.state()["weight_version"] == "1" and lives.answers()


def test_an_exchange_that_leaves_no_weights_ends_the_engine_and_no_request(lives: Lives) -> None:
    def neither() -> None:
        lives.reloader.missing = frozenset({"weights", "kv_cache"})
        raise EngineDeadError("Neither the new weights nor those before can be used.")

    lives.add("a", "b")
    lives.core.step()
    lives.reloader.hooks["apply"] = neither
    with pytest.raises(EngineDeadError, match="Neither"):
        lives.call("update_weights", update={"path": "x", "frees_first": True})
    assert not lives.run(), "no request is ended, and no step begun without weights"
    lives.die()
    assert lives.state()["state"] == "running" and lives.answers()


def test_an_abort_that_comes_to_nothing_ends_nobody(lives: Lives) -> None:
    lives.add("a")
    lives.core.step()
    lives.reloader.failure = OSError(28, "No space left on device")
    with pytest.raises(UtilityError, match="No space"):
        lives.call("sleep", mode="abort")
    assert lives.run()["a"][-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({1: OSError(28, "No space left on device")}, (["kv_cache", "weights"], 2)),
        ({1: RuntimeError("defect"), 2: UserWarning("defect")}, ([], 0)),
    ],
    ids=["no file", "nothing"],
)
def test_an_engine_that_cannot_sleep_on_starts_all_the_same(
    failures: dict[int, Exception], expected: tuple[list[str], int], caplog: pytest.LogCaptureFixture
) -> None:
    lives = Lives()
    lives.call("sleep", level=1)

    def prepare(reloader: Any) -> None:
        release = reloader.release

        def failing(level: int) -> None:
            if level in failures:
                raise failures[level]
            release(level)

        reloader.release = failing

    lives.prepare = prepare
    with caplog.at_level(logging.ERROR):
        lives.die()
    assert "could not go on sleeping at level 1" in caplog.text
    state = lives.state()
    assert (state["missing"], state["sleep_level"]) == expected
    assert state["is_halted"] == bool(state["missing"])
    lives.call("wake_up")
    assert lives.answers()
    lives.close()


def test_memory_that_is_back_is_told_even_when_waking_fails(lives: Lives) -> None:
    def half() -> None:
        lives.reloader.missing = frozenset({"kv_cache"})
        raise MemoryError

    lives.call("sleep")
    lives.reloader.hooks["restore"] = half
    with pytest.raises(MemoryError):
        lives.call("wake_up")
    assert lives.state()["missing"] == ["kv_cache"]
    assert lives.state()["is_sleeping"] and not lives.run()
    del lives.reloader.hooks["restore"]
    assert lives.call("wake_up")["state"] == "running"
    assert lives.answers()


def test_tensors_that_nothing_names_are_given_back() -> None:
    file = anonymous_file("test-tensors", 0)
    try:
        memory = memoryview(bytearray(os.urandom(3 * PAGE)))
        dead = KeptTensors(file)
        infos = [TensorInfo(name, (PAGE,), "U8", PAGE, 0, place * PAGE, name) for place, name in enumerate("abc")]
        (named,), _ = dead.keep(memory, infos[1:2])
        dead.keep(memory, infos)
        assert os.fstat(file).st_blocks * 512 == 4 * PAGE
        following = KeptTensors(file)
        following.keep_only([named])
        assert os.fstat(file).st_blocks * 512 == PAGE
        assert bytes(following.read(named).numpy()) == bytes(memory[PAGE : 2 * PAGE])
    finally:
        os.close(file)
