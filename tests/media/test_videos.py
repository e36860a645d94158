"""Videos in prompts: the prompts, tokens and logits of transformers, and the same bits in all circumstances."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.video_utils import VideoMetadata

from core import LLM
from core.api.errors import RequestError
from core_media.config import MediaConfig, Place
from core_media.families import FAMILIES, VIDEOS
from core_media.frames import decoded_video
from core_media.processing.videos import chosen_frames, video_class
from tests.media.checkpoints import SAVE, picture
from tests.media.comparison import GREEDY, Answer, Reference, assert_same, crowded, ours
from tests.media.seen import Frames, frames, video_file

SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "block_size": 16, "seed": 0}
MARK = "<|vision_start|><|video_pad|><|vision_end|>"
CONFIG = MediaConfig(
    model="",
    model_type="qwen3_vl",
    placeholder="",
    token_id=0,
    limits={},
    others={"video": Place("v", 1)},
    max_frames=6,
)


def every(total: int, fps: float | None) -> range:
    return range(total)


@pytest.fixture(scope="module", params=sorted(VIDEOS.keys() & SAVE.keys()))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SAVE[kind](tmp_path_factory.mktemp(kind))


def prompt_of(text: str, videos: list[tuple[Frames, float]], images: list[Any]) -> dict[str, Any]:
    data = {name: given for name, given in (("video", videos), ("image", images)) if given}
    return {"prompt": text, "multi_modal_data": data} if data else {"prompt": text}


def prompts(kind: str) -> list[tuple[str, list[tuple[Frames, float]], list[Any]]]:
    # No video lasts longer than its frames are high or wide: behind one that does, text goes on after its last position in
    # time, as in the paper and in earlier versions of transformers; 5.24 counts height and width alone.
    shown = FAMILIES[kind]
    return [
        ("ab", [], []),
        (f"ab{MARK}cd", [(frames(1, 4), 8.0)], []),
        (f"{MARK}ab{MARK}z", [(frames(2, 2, 32, 96), 2.0), (frames(3, 6, 96, 32), 6.0)], []),
        (f"a{shown}b{MARK}c{shown}z", [(frames(4, 4), 12.0)], [picture(5), picture(6, 28, 90)]),
    ]


@pytest.fixture(scope="module")
def expected(checkpoint: Path, kind: str) -> list[Answer]:
    """Answers of requests that are alone."""
    with LLM(model=str(checkpoint), enable_prefix_caching=False, **SETTINGS) as llm:
        answers = [ours(llm, [prompt_of(*prompt)])[0] for prompt in prompts(kind)]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


class SeenReference(Reference):
    """transformers' model, fed by transformers' processor of videos."""

    def seen(self, text: str, videos: list[tuple[Frames, float]], images: list[Any]) -> Answer:
        return self.answered(self.given(text, videos, images))

    def given(self, text: str, videos: list[tuple[Frames, float]], images: list[Any]) -> Any:
        """What transformers' processor makes of a prompt."""
        metadata = [
            VideoMetadata(total_num_frames=len(each), fps=fps, frames_indices=list(range(len(each))))
            for each, fps in videos
        ]
        given: dict[str, Any] = {}
        if videos:
            given = {"videos": [each for each, _ in videos], "video_metadata": metadata, "do_sample_frames": False}
        return self._processor(text=text, images=images or None, return_tensors="pt", **given)


@pytest.mark.media
def test_a_family_answers_as_transformers_does(checkpoint: Path, kind: str, expected: list[Answer]) -> None:
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        reference = SeenReference(llm, checkpoint)
    for found, prompt in zip(expected, prompts(kind), strict=True):
        assert_same(found, reference.seen(*prompt))


@pytest.mark.media
def test_company_chunks_preemptions_and_caches_change_no_bit(
    checkpoint: Path, kind: str, expected: list[Answer]
) -> None:
    with LLM(model=str(checkpoint), **{**SETTINGS, **crowded(expected)}) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, [prompt_of(*prompt) for prompt in prompts(kind)]) == expected
        # Layers with a state have larger blocks, of which these prompts fill few.
        assert llm.stats().num_preemptions or kind.startswith("qwen3_5")


@pytest.mark.media
@pytest.mark.parametrize(
    "more",
    [
        {"tensor_parallel_size": 2, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"data_parallel_size": 2},
        {"enable_lora": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 40, "max_model_len": 160},
    ],
    ids=["ranks and drafts", "a group", "adapters and host memory"],
)
def test_the_tokens_are_the_same(checkpoint: Path, kind: str, expected: list[Answer], more: dict[str, Any]) -> None:
    with LLM(model=str(checkpoint), **{**SETTINGS, **more}) as llm:
        for _ in range(2):
            assert ours(llm, [prompt_of(*prompt) for prompt in prompts(kind)]) == expected


@pytest.mark.media
def test_a_file_is_read_as_its_chosen_frames(tmp_path: Path) -> None:
    """Two frames a second, or as --media-io-kwargs says; more than --max-video-frames are refused."""
    SAVE["qwen2_5_vl"](tmp_path)
    file = video_file(frames(1, 16), rate=8)
    chosen = decoded_video(file, "", lambda total, fps: [0, 4, 8, 12], CONFIG)
    with LLM(model=str(tmp_path), max_video_frames=6, **SETTINGS) as llm:
        [found] = ours(llm, [prompt_of(f"a{MARK}b", [file], [])])
        [again] = ours(llm, [prompt_of(f"a{MARK}b", [(chosen.frames, 2.0)], [])])
        assert found == again
        with pytest.raises(RequestError, match=r"video'\]\[0\]: the model would see 8 frames .*at most 6"):
            ours(llm, [prompt_of(f"a{MARK}b", [video_file(frames(1, 33), rate=8)], [])])
    with LLM(model=str(tmp_path), media_io_kwargs={"video": {"num_frames": 8}}, **SETTINGS) as llm:
        [more] = ours(llm, [prompt_of(f"a{MARK}b", [file], [])])
        assert len(more.prompt) - 4 == 2 * (len(found.prompt) - 4)
        with pytest.raises(RequestError, match=r"2 placeholders .* for 1 videos"):
            llm.generate([prompt_of(f"a{MARK}{MARK}", [file], [])], GREEDY, use_tqdm=False)


@pytest.mark.media
def test_uneven_times_lie_where_transformers_puts_them(tmp_path: Path) -> None:
    """Of a video whose rows in time are as far apart as its rows in height, so that the text goes on at the same place."""
    SAVE["qwen2_5_vl"](tmp_path)
    prompt = (f"ab{MARK}cd", [(frames(1, 4, 112, 112), 5.3)], [])
    with LLM(model=str(tmp_path), **SETTINGS) as llm:
        [found] = ours(llm, [prompt_of(*prompt)])
        assert_same(found, SeenReference(llm, tmp_path).seen(*prompt))


def test_frames_of_every_format_are_found() -> None:
    pictures = frames(1, 5)
    for kind, codec in (
        ("mp4", "mpeg4"),
        ("mov", "mpeg4"),
        ("webm", "libvpx"),
        ("matroska", "mpeg4"),
        ("avi", "mpeg4"),
    ):
        video = decoded_video(video_file(pictures, kind=kind, codec=codec), "", every, CONFIG)
        assert (video.total, video.fps, video.frames.shape) == (5, 4.0, pictures.shape)
        assert np.abs(video.frames.astype(int) - pictures).mean() < 20


def sound_only() -> bytes:
    import io

    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format="matroska") as container:
        track = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.int16), layout="mono")
        frame.sample_rate = 16_000
        for packet in [*track.encode(frame), *track.encode()]:
            container.mux(packet)
    return stream.getvalue()


GOOD = video_file(frames(1, 5))
BAD = [
    (b"", "", "the file is empty"),
    (b"#EXTM3U\nhttp://169.254.169.254/\n", "", "no video that can be read"),
    (b"ffconcat version 1.0\nfile /etc/passwd\n", "", "no video that can be read"),
    (GOOD[: len(GOOD) // 2], "", "cut or damaged"),
    (GOOD[:32], "", "cut or damaged"),
    (GOOD, "video/webm", "said to be video/webm, but holds mp4"),
    (GOOD, "video/nothing", "said to be video/nothing"),
    (sound_only(), "", "has no video"),
    (video_file(frames(1, 7)), "", "7 frames of the video; at most 6"),
]


@pytest.mark.parametrize(("data", "declared", "sentence"), BAD, ids=[row[2] for row in BAD])
def test_bad_videos_are_refused_with_what_is_wrong(data: bytes, declared: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        decoded_video(data, declared, every, CONFIG)


def test_a_huge_video_and_one_without_frames_are_refused() -> None:
    small = MediaConfig(
        **{**{name: getattr(CONFIG, name) for name in CONFIG.__struct_fields__}, "max_image_pixels": 100}
    )
    with pytest.raises(RequestError, match=r"64 × 48 pixels; 1 to 100 are taken"):
        decoded_video(GOOD, "", every, small)
    with pytest.raises(RequestError, match=r"0 frames|cut or damaged|no video"):
        decoded_video(video_file(frames(1, 5)[:0], kind="matroska"), "", every, CONFIG)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_5", "qwen3_vl"])
@pytest.mark.parametrize("total", [1, 2, 3, 5, 100, 10_000])
def test_every_number_of_frames_has_a_choice(kind: str, total: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    processor = video_class(str(tmp_path))()
    for options in ({}, {"num_frames": 4}, {"fps": 0.5}):
        chosen = list(chosen_frames(processor, options)(total, 25.0))
        assert chosen == sorted(chosen)
        assert 0 < len(chosen) <= total
        assert chosen[-1] < total


@pytest.mark.parametrize(("total", "fps"), [(59, 1.0), (133, 5.0), (143, 5.0)])
def test_no_frame_behind_the_last_one_is_chosen(total: int, fps: float, tmp_path: Path) -> None:
    """transformers' own choice has one at these lengths, for which whole files were called cut."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_5_vl"}')
    processor = video_class(str(tmp_path))()
    metadata = VideoMetadata(total_num_frames=total, fps=fps)
    theirs = [int(index) for index in processor.sample_frames(metadata, fps=2)]
    assert theirs[-1] == total
    assert list(chosen_frames(processor, {})(total, fps)) == theirs[:-1]
