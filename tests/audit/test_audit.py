"""Rows computed again alone: planted faults are found and their steps discarded, clean rows raise no alarm."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.api.errors import EngineDeadError, UserError
from core.api.stats import SchedulerStats
from core_config.audit import audit_settings
from core_observers.engine.audit.observer import MOST_MISMATCHES
from core_observers.families.audit_metrics import CLEAN, CLEAN_ANSWERS, audits
from core_observers.own_directory import own_directory
from tests.apis.conftest import run_server
from tests.apis.fake_engine import set_state
from tests.audit.audited import Audited, auditing, hit
from tests.audit.faulty import FAULTS, Faulty

MODELS = ("tiny_llama", "tiny_lfm2", "tiny_gemma3")
"""Full attention, states, sliding windows."""


@pytest.fixture(scope="module", params=MODELS)
def audited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    path: Path = request.getfixturevalue(request.param)
    with auditing(path, audit_dump=str(tmp_path_factory.mktemp("audit") / "dump")) as engine:
        yield engine


def test_clean_rows_raise_no_alarm(audited: Audited) -> None:
    before = audited.counts()
    for seed in range(3):
        audited.run(seed)
    audited.run(4, repetition_penalty=1.3, logprobs=2, top_p=0.9)
    after = audited.counts()
    assert set(after) == {CLEAN, CLEAN_ANSWERS}
    assert after[CLEAN] - before.get(CLEAN, 0) >= 20


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_reaches_no_client(audited: Audited, fault: str) -> None:
    assert hit(audited, fault, 1)


@pytest.fixture
def broken(audited: Audited) -> Iterator[Audited]:
    """An engine whose steps of several rows sample a wrong token."""
    inner = audited.executor._executor
    faulty = Faulty(inner, FAULTS["a token one too high"], audited.core.scheduler.kv.block_size)
    audited.executor._executor = faulty
    faulty.armed = True
    yield audited
    audited.executor._executor = inner


@pytest.mark.parametrize("audited", ["tiny_llama"], indirect=True)
def test_both_sides_are_kept_for_the_owner_alone_and_without_ids(broken: Audited) -> None:
    broken.run(5, max_tokens=3)
    folder = broken.audit._directory
    assert folder is not None and stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.glob("audit-*.json"))
    assert files and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    told = [json.loads(file.read_text()) for file in files]
    assert all(each["kind"] in ("token", "cache", "logprobs") and each["num_tokens"] >= 1 for each in told)
    assert not any("token_ids" in each for each in told)
    assert all(each["served"] != each["alone"] for each in told if each["kind"] == "cache")
    assert not any("served" in each for each in told if each["kind"] == "token")


@pytest.mark.parametrize("audited", ["tiny_llama"], indirect=True)
def test_nothing_is_audited_beyond_the_budget(audited: Audited) -> None:
    before = audited.counts().get(CLEAN, 0)
    audited.audit._settings, settings = (
        msgspec.structs.replace(audited.audit._settings, budget=1e-9),
        audited.audit._settings,
    )
    audited.run(6)
    audited.audit._settings = settings
    assert audited.counts()[CLEAN] - before <= 1


def test_other_owners_directories_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="--audit-dump"):
            own_directory("--audit-dump", str(path))
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(UserError, match="others may enter it"):
        own_directory("--audit-dump", str(open_to_all))


GIVEN = {
    "audit_share": 0.5,
    "audit_budget": 2.0,
    "audit_dump": None,
    "audit_dump_ids": False,
    "async_scheduling": False,
    "speculative_config": None,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"async_scheduling": True}, "--audit-share: cannot be used with --async-scheduling"),
        ({"speculative_config": {"method": "ngram"}}, "--audit-share: cannot be used with --speculative-config"),
        ({"tensor_parallel_size": 2}, "--audit-share: cannot be used with --tensor-parallel-size"),
        ({"audit_share": 0.0, "audit_dump": "d"}, "--audit-dump: has no meaning without audits"),
    ],
)
def test_what_cannot_be_audited_is_refused_by_name(values: dict[str, Any], sentence: str) -> None:
    problems: list[str] = []
    audit_settings(GIVEN | values, problems)
    assert len(problems) == 1 and problems[0].startswith(sentence)


def test_arguments_become_settings() -> None:
    problems: list[str] = []
    assert audit_settings(GIVEN, problems) == {"share": 0.5, "budget": 0.02, "dump": None, "dump_ids": False}
    assert audit_settings(GIVEN | {"audit_share": 0.0}, problems) == {} and not problems


@pytest.mark.parametrize("audited", ["tiny_llama"], indirect=True)
def test_three_mismatches_within_an_hour_end_the_engine(broken: Audited) -> None:
    """The last test of this file: its engine is gone."""
    broken.audit._times.clear()
    broken.audit._clock = lambda: 1.0
    with pytest.raises(EngineDeadError, match=f"Audits found {MOST_MISMATCHES} mismatches within an hour"):
        for seed in range(20, 20 + 4 * MOST_MISMATCHES):
            broken.run(seed, max_tokens=4)


def test_metrics_and_health_tell_what_audits_found() -> None:
    stats = SchedulerStats(audits={CLEAN: 7, "cache": 2, "token": 1, CLEAN_ANSWERS: 3, "cached": 1})
    page = {metric.name: metric for metric in audits("core:", "m", stats.audits)}
    assert page["core:audited_rows"].samples[0].value == 10
    kinds = {sample.labels["kind"]: sample.value for sample in page["core:audit_mismatches"].samples}
    assert kinds == {"cache": 2, "token": 1, "cached": 1}
    assert page["core:audited_answers"].samples[0].value == 4
    assert list(audits("core:", "m", {})) == []
    with run_server() as running:
        assert "audit_mismatches" not in running.http.get("/health").json()
        set_state(running.engine, stats)
        assert running.http.get("/health").json()["audit_mismatches"] == 4
