"""Processors of others: chosen by name, and what goes wrong in one costs its own request."""

import asyncio
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from core import LLM
from core.api.errors import ConfigError, RequestError
from core.plugin.manifest import sha256_of
from core_media.config import MediaConfig
from core_media.features import unpack
from core_media.processing.pool import ProcessingPool
from core_media.processing.processed import Processed
from tests.media.checkpoints import file_of, picture
from tests.media.comparison import GREEDY, assert_same, ours, prompt_of
from tests.media.processors import write_processor

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "seed": 0}
REFUSED = {
    101: "the processor 'mine' failed on this picture",
    103: "more memory than one may take",
    104: "ended on this picture",
    108: "the processor 'mine' failed",
    109: "the processor 'mine' failed",
    110: "the processor 'mine' failed",
    111: "the processor 'mine' failed",
    112: "the processor 'mine' failed",
    115: "the picture is not pretty",
    116: "the processor 'mine' failed",
    117: "the processor 'mine' failed",
}
"""Width of a picture → what its request is told."""
QUICK = (101, 104, 108)
LOGGED = {
    101: "no such colour", 108: "not finite", 109: "of type object", 110: "process gave a str", 111: "its arrays are {}",
    112: "a int", 116: "characters", 117: "SystemExit",
}  # fmt: skip


def shown(width: int) -> Image.Image:
    return picture(0, width, 30)


@pytest.fixture
def config(tmp_path: Path) -> MediaConfig:
    row = write_processor(tmp_path / "mine.py")
    return MediaConfig(
        model="", model_type="llava", placeholder="<image>", token_id=1, limits={"image": 2}, processor=row,
        processor_arguments={"tone": 0.5},
    )  # fmt: skip


@pytest.mark.parametrize("widths", [QUICK, pytest.param(sorted(set(REFUSED) - set(QUICK)), marks=pytest.mark.media)])
def test_what_goes_wrong_in_a_processor_is_the_answer_to_its_own_request(
    config: MediaConfig, caplog: pytest.LogCaptureFixture, widths: Sequence[int]
) -> None:
    async def run() -> None:
        pool = ProcessingPool(config)
        try:
            before = await pool.run(file_of(shown(50)))
            for width in widths:
                with pytest.raises(RequestError, match=REFUSED[width]):
                    await pool.run(file_of(shown(width)))
            await pool.forget()
            assert await pool.run(file_of(shown(50))) == before
            assert len(unpack(before.features)["pixel_values"].reshape(-1)) == 3 * 28 * 28
        finally:
            await pool.close()

    asyncio.run(run())
    for width in set(widths) & set(LOGGED):
        assert LOGGED[width] in caplog.text


def test_a_processor_that_hangs_is_ended_and_replaced(config: MediaConfig) -> None:
    async def run() -> None:
        pool = ProcessingPool(config)
        try:
            before = await pool.run(file_of(shown(50)))
            [helper] = pool._helpers
            whole = helper.lane
            helper.lane = dataclasses.replace(whole, job_seconds=0.5)
            with pytest.raises(RequestError, match="could not be processed within"):
                await pool.run(file_of(shown(102)))
            helper.lane = whole
            await pool.forget()
            assert await pool.run(file_of(shown(50))) == before
        finally:
            await pool.close()

    asyncio.run(run())


def test_several_processes_process_items_at_once_and_one_that_ends_costs_its_own(config: MediaConfig) -> None:
    """The first item waits in its process until the second one is processed in another."""

    async def run() -> None:
        pool = ProcessingPool(msgspec.structs.replace(config, num_workers=2))
        try:
            first = asyncio.ensure_future(pool.run(file_of(shown(118))))
            ending = asyncio.ensure_future(pool.run(file_of(shown(104))))
            with pytest.raises(RequestError, match="ended on this picture"):
                await ending
            assert not first.done()
            await pool.run(file_of(shown(119)))
            await first
            assert len({helper.process.pid for helper in pool._helpers if helper.process}) == 2
        finally:
            await pool.close()

    asyncio.run(run())


def test_a_processor_that_cannot_be_built_is_logged_at_the_start_and_refuses_items_alone(
    config: MediaConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        pool = ProcessingPool(msgspec.structs.replace(config, processor_arguments={"broken": True}))
        pool.start()
        try:
            for seed in range(2):
                with pytest.raises(RequestError, match="core_load failed: KeyError: 'patch_size'") as caught:
                    await pool.run(file_of(picture(seed)))
                assert (caught.value.status, caught.value.code) == (501, "media_unavailable")
        finally:
            await pool.close()

    asyncio.run(run())
    [record] = caplog.records
    assert "requests with text alone go on" in record.getMessage()


@pytest.mark.media
def test_a_checkpoint_with_a_broken_processor_file_serves_the_text_alone(llava: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(llava, tmp_path / "model")
    (broken / "preprocessor_config.json").write_text("{")
    (broken / "processor_config.json").write_text("{")
    with LLM(model=str(broken), **SETTINGS) as llm:
        with pytest.raises(RequestError, match="builds no processor from") as caught:
            ours(llm, [prompt_of("ab<image>c", [shown(50)])])
        assert caught.value.status == 501
        assert ours(llm, [{"prompt": "abc"}])[0].token_ids


def test_features_of_other_processors_and_arguments_never_meet(config: MediaConfig, tmp_path: Path) -> None:
    async def digest(config: MediaConfig) -> Processed:
        pool = ProcessingPool(config)
        try:
            return await pool.run(file_of(shown(50)))
        finally:
            await pool.close()

    edited = tmp_path / "edited.py"
    row = write_processor(edited)
    edited.write_text(edited.read_text().replace("/ 255", "/ 256"))
    row = msgspec.structs.replace(row, sha256=sha256_of(edited))
    made = [
        asyncio.run(digest(each))
        for each in (
            config,
            msgspec.structs.replace(config, processor_arguments={}),
            msgspec.structs.replace(config, processor=row),
        )
    ]
    assert len({each.digest for each in made}) == 3


@pytest.fixture(scope="module")
def llm(llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    file = tmp_path_factory.mktemp("processor") / "mine.py"
    write_processor(file)
    with LLM(model=str(llava), plugins=str(file), mm_processor="mine", **SETTINGS) as running:
        yield running


def test_a_named_processor_is_used_and_lies_about_counts_cost_their_request(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [prompt_of("ab<image>c", [shown(50)]), {"prompt": "abc"}]
    expected = ours(llm, prompts)
    assert expected[0].prompt.count(llm._config.media.token_id) == 4
    for width, sentence in (
        (105, "has 4 rows where 1 belong"),
        (106, "has 4 rows where 8 belong"),
        (113, "The tower failed on a picture"),
        (114, "The tower failed on a picture"),
    ):
        caplog.clear()
        [wrong, *others] = llm.generate([prompt_of("ab<image>c", [shown(width)]), *prompts], GREEDY, use_tqdm=False)
        assert wrong.outputs[0].finish_reason == "error"
        assert sentence in caplog.text
        assert [list(each.outputs[0].token_ids) for each in others] == [each.token_ids for each in expected]
    with pytest.raises(RequestError, match="for 0 rows of 1 pictures"):
        llm.generate([prompt_of("ab<image>c", [shown(107)])], GREEDY, use_tqdm=False)
    assert ours(llm, prompts) == expected
    assert ours(llm, [prompt_of("ab<image>c", [picture(1, 50, 30)])]) != expected[:1]


@pytest.mark.media
def test_the_features_of_transformers_give_its_answers(llava: Path, tmp_path: Path) -> None:
    """A picture of the tower's size is not resized, so that the plugin needs CLIP's colours alone."""
    write_processor(tmp_path / "mine.py", colours=True)
    prompts = [prompt_of("ab<image>c", [picture(3, 28, 28)])]
    with LLM(model=str(llava), plugins=str(tmp_path / "mine.py"), mm_processor="mine", **SETTINGS) as llm:
        [found] = ours(llm, prompts)
    with LLM(model=str(llava), **SETTINGS) as llm:
        assert_same(found, ours(llm, prompts)[0])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mm_processor": "transformer"}, "transformers"),
        ({"mm_processor": "mine", "mm_processor_config": {"shade": 1}}, "shade"),
        ({"mm_processor": "mine", "mm_processor_config": {"tone": "dark"}}, "tone"),
    ],
)
def test_wrong_choices_are_sentences(llava: Path, tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    write_processor(tmp_path / "mine.py")
    with pytest.raises(ConfigError, match=sentence):
        LLM(model=str(llava), plugins=str(tmp_path / "mine.py"), **given, **SETTINGS)


def test_a_processor_that_takes_no_pictures_is_refused_at_the_start(llava: Path, tmp_path: Path) -> None:
    write_processor(tmp_path / "mine.py", ("audio",))
    with pytest.raises(ConfigError, match=r"modalities: needs audio, got image .*--limit-mm-per-prompt image=0"):
        LLM(model=str(llava), plugins=str(tmp_path / "mine.py"), mm_processor="mine", **SETTINGS)
