"""Videos of which a share of the rows is left out: transformers' tower, rows chosen by the published formula, the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core import LLM
from core.api.errors import ConfigError
from core.api.messages import MediaItem
from core_media.families import PRUNED
from core_media.pruning import kept_rows, num_kept, pruned
from core_runtime.executor.steps.rotary_rows import places_of, shifts_of
from tests.media.checkpoints import SAVE, picture
from tests.media.comparison import NUM_TOKENS, Answer, assert_same, crowded, ours
from tests.media.seen import Frames, frames
from tests.media.test_videos import MARK, SETTINGS, SeenReference, prompt_of

RATE = 0.4
SEEN = "<|image_pad|>"
Prompt = tuple[str, list[tuple[Frames, float]], list[Any]]
PROMPTS: list[Prompt] = [
    ("ab", [], []),
    (f"ab{MARK}cd", [(frames(1, 8, 112, 112), 8.0)], []),
    (f"{MARK}ab{MARK}z", [(frames(2, 6, 112, 96), 8.0), (frames(3, 2, 64, 48), 6.0)], []),
    (f"a{SEEN}b{MARK}c", [(frames(4, 8, 96, 112), 8.0)], [picture(5)]),
]
"""No video is longer in time than in height and width, see `test_videos`."""


def chosen(rows: Any, per_frame: int, rate: float) -> list[int]:
    """The formula of arXiv 2510.14624, as vLLM has it, row by row."""
    unlike = [255.0] * per_frame
    for now, before in zip(rows[per_frame:], rows[:-per_frame], strict=True):
        unlike.append(1 - float(now @ before / (now.norm() * before.norm())))
    order = sorted(range(len(rows)), key=lambda index: -unlike[index])
    return sorted(order[: max(per_frame, int(len(rows) * (1 - rate)))])


class PrunedReference(SeenReference):
    """transformers' tower and language model; the columns of rows that are left out are taken out between the two."""

    def pruned(self, text: str, videos: list[tuple[Frames, float]], images: list[Any], rate: float) -> Answer:
        taken: dict[str, Any] = {}

        def take(module: Any, given: Any, named: dict[str, Any]) -> None:
            taken.update(named)

        given = self.given(text, videos, images)
        model = self._model.model
        hook = model.language_model.register_forward_pre_hook(take, with_kwargs=True)
        with torch.no_grad():
            self._model(**given)
        hook.remove()
        ids, embeds, found = given["input_ids"][0], taken["inputs_embeds"][0], taken["position_ids"]
        places = torch.arange(len(ids)).expand(3, -1) if found is None else found[-3:, 0]
        keep = torch.ones(len(ids), dtype=torch.bool)
        is_video = (ids == model.config.video_token_id).nonzero()[:, 0].tolist()
        for grid in given.get("video_grid_thw", torch.zeros(0, 3)).tolist():
            per_frame = grid[1] * grid[2] // 4
            own, is_video = is_video[: grid[0] * per_frame], is_video[grid[0] * per_frame :]
            kept = chosen(embeds[own], per_frame, rate)
            keep[sorted({*own} - {own[index] for index in kept})] = False
        assert not is_video
        behind = int(places.max()) + 1
        return self._continued(ids[keep].tolist(), embeds[keep], places[:, keep], behind)

    def _continued(self, prompt: list[int], embeds: Any, places: Any, behind: int) -> Answer:
        """Return the greedy tokens behind embeddings, without a cache."""
        tokens: list[int] = []
        tables: list[dict[int, float]] = []
        for index in range(NUM_TOKENS):
            with torch.no_grad():
                states = self._model.model.language_model(
                    inputs_embeds=embeds[None], position_ids=places[:, None],
                    attention_mask=torch.ones(1, len(embeds), dtype=torch.int64), use_cache=False,
                )  # fmt: skip
                scores = torch.log_softmax(self._model.lm_head(states[0][0, -1]).float(), -1)
            tables.append(dict(enumerate(scores.tolist())))
            tokens.append(int(scores.argmax()))
            more = self._model.get_input_embeddings()(torch.tensor(tokens[-1:]))
            embeds = torch.cat([embeds, more])
            places = torch.cat([places, torch.full((3, 1), behind + index)], 1)
        return Answer(prompt, tokens, tables)


@pytest.fixture(scope="module", params=sorted(PRUNED & SAVE.keys()))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SAVE[kind](tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[Answer]:
    """Answers of requests that are alone."""
    with LLM(model=str(checkpoint), video_pruning_rate=RATE, enable_prefix_caching=False, **SETTINGS) as llm:
        answers = [ours(llm, [prompt_of(*prompt)])[0] for prompt in PROMPTS]
    assert len({str(answer) for answer in answers}) == len(answers)
    return answers


@pytest.mark.media
def test_rows_are_left_out_by_the_published_formula(checkpoint: Path, expected: list[Answer]) -> None:
    with LLM(model=str(checkpoint), **SETTINGS) as llm:
        reference = PrunedReference(llm, checkpoint)
        whole = ours(llm, [prompt_of(*PROMPTS[1])])[0]
    for found, prompt in zip(expected, PROMPTS, strict=True):
        assert_same(found, reference.pruned(*prompt, RATE))
    assert_same(whole, reference.pruned(*PROMPTS[1], 0.0))
    assert len(whole.prompt) - len(expected[1].prompt) == 64 - int(64 * (1 - RATE))


@pytest.mark.media
def test_company_chunks_preemptions_and_caches_change_no_bit(checkpoint: Path, expected: list[Answer]) -> None:
    with LLM(model=str(checkpoint), video_pruning_rate=RATE, **{**SETTINGS, **crowded(expected)}) as llm:
        for _ in range(2):  # the second time with cached prefixes
            assert ours(llm, [prompt_of(*prompt) for prompt in PROMPTS]) == expected
        assert llm.stats().num_preemptions


@pytest.mark.media
@pytest.mark.parametrize(
    "more",
    [
        {"tensor_parallel_size": 2, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"enable_lora": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 40, "max_model_len": 320},
        {"enable_sleep_mode": True},
    ],
    ids=["ranks and drafts", "adapters and host memory", "sleep"],
)
def test_the_tokens_are_the_same(checkpoint: Path, expected: list[Answer], more: dict[str, Any]) -> None:
    with LLM(model=str(checkpoint), video_pruning_rate=RATE, **{**SETTINGS, **more}) as llm:
        for _ in range(2):
            assert ours(llm, [prompt_of(*prompt) for prompt in PROMPTS]) == expected
            if "enable_sleep_mode" in more:
                llm.sleep(2)
                llm.wake_up()


@pytest.mark.media
def test_blocks_of_one_share_are_not_found_by_another(tmp_path: Path) -> None:
    """Both keep as many rows of a video of two rows in time, but blocks in a store are of one of them."""
    SAVE["qwen2_5_vl"](tmp_path / "model")
    prompt = prompt_of(f"{'x' * 40}{MARK}{'z' * 20}", [(frames(2, 4, 56, 56), 8.0)], [])
    store = {"kv_offloading_size": 0.1, "kv_offloading_disk_path": str(tmp_path / "store")}
    counts = []
    for rate in (0.9, 0.8, 0.9):
        with LLM(model=str(tmp_path / "model"), video_pruning_rate=rate, **store, **SETTINGS) as llm:
            [output] = llm.generate([prompt], use_tqdm=False)
            counts.append(output.num_cached_tokens)
    assert counts[1] < counts[2]


@pytest.mark.media
def test_a_model_whose_videos_have_text_between_their_rows_is_refused(tmp_path: Path) -> None:
    SAVE["qwen3_vl"](tmp_path)
    with pytest.raises(ConfigError, match="how many rows a frame keeps would have to be known"):
        LLM(model=str(tmp_path), video_pruning_rate=RATE, **SETTINGS)


@pytest.mark.parametrize(("count", "time", "rate", "kept"), [
    (64, 4, 0.3, 44), (64, 4, 0.0, 64), (64, 4, 0.9, 16), (6, 1, 0.5, 6), (30, 3, 0.5, 15),
])  # fmt: skip
def test_the_first_frame_is_kept_and_a_share_of_all(count: int, time: int, rate: float, kept: int) -> None:
    assert num_kept(count, time, rate) == kept
    rows = np.random.default_rng(0).standard_normal((count, 8), np.float32)
    found = kept_rows(rows, time, rate).tolist()
    assert len(found) == kept
    assert found[: count // time] == list(range(count // time))
    assert found == chosen(torch.from_numpy(rows), count // time, rate)


def test_of_a_still_video_the_earliest_rows_are_kept() -> None:
    rows = np.tile(np.eye(4, 8, dtype=np.float32), (3, 1))
    assert kept_rows(rows, 3, 0.5).tolist() == [0, 1, 2, 3, 4, 5]


def test_kept_rows_and_the_text_behind_them_keep_their_positions() -> None:
    rows = np.random.default_rng(1).standard_normal((12, 8), np.float32)
    whole = MediaItem(3, 15, "d", 7, grid=[3, 2, 2, 1, 26, 51])
    data, grid = pruned(rows.tobytes(), whole.grid, 0.5)
    kept = [number - 1 for number in grid[6:]]
    assert data == rows[kept].tobytes()
    item = MediaItem(3, 3 + len(kept), "d", 7, grid=grid)
    assert places_of([item]).tolist() == places_of([whole])[kept].tolist()
    after = MediaItem(20, 24, "e", 8)  # a sound, whose rows have one position each
    assert places_of([item, after])[-4:, 0].tolist() == [
        20 + int(shifts_of([item]).by[-1]) + index for index in range(4)
    ]
    assert item.stop + shifts_of([item]).by[-1] == whole.stop + shifts_of([whole]).by[-1]
