"""Arguments of the image processor, of the server and of single requests; and pictures that were seen before."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from transformers import AutoProcessor

from core.api.errors import RequestError
from core_media.config import IMAGE, MediaConfig
from core_media.features import pack, unpack
from core_media.processing.pool import ProcessingPool
from core_media.processing.process import Answer, Job
from core_media.processing.worker import Worker
from core_media.reading.given import set_options
from core_media.reading.source import MediaSource
from tests.media.checkpoints import file_of, picture

OPTIONS = {"do_normalize": False, "rescale_factor": 0.01}


def config_of(llava: Path, **options: Any) -> MediaConfig:
    return MediaConfig(
        model=str(llava), model_type="llava", placeholder="<image>", token_id=0, limits={IMAGE: 4},
        processor_kwargs=options, processor_cache_bytes=1 << 20,
    )  # fmt: skip


def expected(llava: Path, **options: Any) -> Any:
    """What transformers' own processor makes of the picture."""
    processor = AutoProcessor.from_pretrained(llava, backend="pil")
    return processor(text="<image>", images=[picture(5)], return_tensors="np", **options)["pixel_values"]


def test_arguments_of_the_server_and_of_a_request_reach_the_processor(llava: Path) -> None:
    data = file_of(picture(5))
    plain, other = Worker(config_of(llava)), Worker(config_of(llava, **OPTIONS))
    assert not np.allclose(expected(llava), expected(llava, **OPTIONS))
    np.testing.assert_array_equal(plain.run(IMAGE, data).arrays["pixel_values"], expected(llava))
    np.testing.assert_array_equal(other.run(IMAGE, data).arrays["pixel_values"], expected(llava, **OPTIONS))
    np.testing.assert_array_equal(
        plain.run(IMAGE, data, options=OPTIONS).arrays["pixel_values"], expected(llava, **OPTIONS)
    )
    mixed = other.run(IMAGE, data, options={"do_normalize": True}).arrays["pixel_values"]
    np.testing.assert_array_equal(mixed, expected(llava, **OPTIONS | {"do_normalize": True}))
    assert plain.identity != other.identity


@pytest.mark.parametrize(
    "options", [{"size": "huge"}, {"rescale_factor": {}}, {"image_mean": [1, 2, 3, 4, 5]}], ids=str
)
def test_arguments_that_the_processor_cannot_take_are_a_mistake_of_the_request(llava: Path, options: Any) -> None:
    with pytest.raises(RequestError, match="processor"):
        Worker(config_of(llava)).run(IMAGE, file_of(picture(5)), options=options)


def test_a_request_without_pictures_has_no_arguments_for_them() -> None:
    set_options([], {})
    for sources in ([], [MediaSource("a", "b", modality="video")]):
        with pytest.raises(RequestError, match="concerns pictures") as told:
            set_options(sources, OPTIONS)
        assert told.value.param == "mm_processor_kwargs"
    source = MediaSource("a", "b")
    set_options([source], OPTIONS)
    assert source.options == OPTIONS


def test_a_picture_that_was_seen_before_is_not_processed_again(llava: Path) -> None:
    """Another picture, or other arguments, are; and all are once they are forgotten."""
    config = config_of(llava)
    worker = Worker(config)
    pool = ProcessingPool(config)
    processed: list[tuple[bytes, dict[str, Any]]] = []

    async def ask(job: Job, data: bytes, noun: str) -> Answer:
        processed.append((data, job.options))
        made = worker.run(job.modality, data, job.declared, job.options)
        return Answer(made.text, pack(made.arrays), worker.identity)

    pool._ask = ask  # type: ignore[method-assign]

    async def run() -> None:
        first, second = file_of(picture(5)), file_of(picture(6))
        once = await pool.run(first)
        assert await pool.run(first) == once and len(processed) == 1
        other = await pool.run(first, options=OPTIONS)
        assert other.digest != once.digest and len(processed) == 2
        assert unpack(other.features)["pixel_values"].tobytes() != unpack(once.features)["pixel_values"].tobytes()
        await pool.run(second)
        assert await pool.run(first) == once and len(processed) == 3
        await pool.forget()
        assert await pool.run(first) == once and len(processed) == 4

    asyncio.run(run())
    assert msgspec.json.encode(processed[1][1]) == msgspec.json.encode(OPTIONS)
