"""Pictures by parts, on random weights of true widths: `python -m benchmarks.media`.

Owns: the rows `tower` (of the machine's matmul peak), `again` (the same picture behind other text, beside that prompt as text),
`workers` (two processing processes beside one) and `memory` (of one process). Never does: run a peer, or serve.

The model is a LLaVA with the widths of SigLIP So400m, 448 × 448 pixels in patches of 14 (1,024 rows), and a text model of the
widths of SmolLM2 135M. `--layers` cuts both: the share of the peak and the ratios say little of a model with fewer layers than
it has, but all of them are the same work a layer.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from benchmarks.peer.machine import describe

SIDE, PATCH = 448, 14
ROWS = (SIDE // PATCH) ** 2
WIDTH, INNER, HEADS = 1152, 4304, 16
TEXT = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
    "vocab_size": 300, "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
PARTS = ("tower", "again", "workers", "memory")


def save_model(directory: Path, layers: int) -> None:
    """Write a checkpoint of random weights, with its processor."""
    from transformers import (
        AutoModelForImageTextToText,
        LlavaConfig,
        LlavaProcessor,
        PreTrainedTokenizerFast,
        SiglipImageProcessor,
    )

    from tests.tiny_models import byte_tokenizer

    made = byte_tokenizer()
    made.add_special_tokens(["<image>"])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_hidden_layers": layers, "image_size": SIDE, "patch_size": PATCH, "vision_use_head": False,
    }  # fmt: skip
    config = LlavaConfig(
        vision_config=vision,
        text_config={**TEXT, "num_hidden_layers": layers},
        image_token_id=made.token_to_id("<image>"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    images = SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    LlavaProcessor(images, tokenizer, PATCH, "full", num_additional_image_tokens=0).save_pretrained(directory)


def picture(seed: int, width: int = 640, height: int = 480) -> Image.Image:
    """Noise, the worst that a JPEG can hold."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def file_of(image: Image.Image) -> bytes:
    """The picture as a JPEG."""
    stream = io.BytesIO()
    image.save(stream, "JPEG")
    return stream.getvalue()


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median of `rounds` runs, after one that is not counted."""
    work()
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def tower(llm: Any, layers: int, rounds: int) -> dict[str, float]:
    """The tower's operations a second, beside those of a product of its widths in what the processor multiplies."""
    from core_media.config import media_of
    from core_media.features import pack
    from core_media.serving.tower import Tower
    from core_media.serving.widened import multiplies

    media = media_of(llm._config)
    assert media is not None
    built = Tower(llm._config, media)
    features = pack({"pixel_values": np.zeros((1, 3, SIDE, SIDE), np.float32)})
    rows = len(built.rows(features)) // built.row_bytes
    assert rows == ROWS, rows
    operations = layers * ROWS * (2 * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER) + 4 * ROWS * WIDTH)
    operations += 2 * ROWS * (WIDTH * 3 * PATCH * PATCH + WIDTH * TEXT["hidden_size"] + TEXT["hidden_size"] ** 2)  # type: ignore[operator]
    dtype = torch.bfloat16 if multiplies(torch.bfloat16) else torch.float32
    x, w = torch.randn(ROWS, WIDTH, dtype=dtype), torch.randn(WIDTH, INNER, dtype=dtype)
    with torch.inference_mode():
        product = seconds(lambda: x @ w, 5 * rounds)
    peak = 2 * ROWS * WIDTH * INNER / product
    took = seconds(lambda: built.rows(features), rounds)
    return {"milliseconds": 1000 * took, "GFLOP/s": operations / took / 1e9, "peak GFLOP/s": peak / 1e9,
            "of the peak": operations / took / peak}  # fmt: skip


def again(llm: Any, rounds: int) -> dict[str, float]:
    """Seconds to the first token behind a new picture, behind a known one with other text, and of that prompt as text."""
    from core import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0)
    known = picture(0)
    names = iter(range(10_000))

    def ask(image: Image.Image | None) -> None:
        words = f"{next(names):05d} what is this"  # differs from the first token on, so that no prefix is cached
        if image is None:
            prompt: Any = {"prompt": words + "x" * ROWS}
        else:
            prompt = {"prompt": f"{words}<image>", "multi_modal_data": {"image": image}}
        llm.generate([prompt], params, use_tqdm=False)

    seeds = iter(range(1, 10_000))
    text, same = seconds(lambda: ask(None), rounds), seconds(lambda: ask(known), rounds)
    new = seconds(lambda: ask(picture(next(seeds))), rounds)
    return {"text ms": 1000 * text, "known ms": 1000 * same, "new ms": 1000 * new, "known / text": same / text}


@dataclass
class Turns:
    """The turns of one pool.

    wall:    seconds of each turn.
    busiest: processor seconds of the process that had most to do, of the turns in which no process was replaced.
    """

    wall: list[float] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)

    async def take(self, pool: Any, files: Sequence[bytes]) -> None:
        """Process all files once."""
        begin, before = time.perf_counter(), processor_seconds(pool)
        await asyncio.gather(*(pool.run(each) for each in files))
        self.wall.append(time.perf_counter() - begin)
        after = processor_seconds(pool)
        if after.keys() == before.keys():
            self.busiest.append(max(after[pid] - before[pid] for pid in after))


def processor_seconds(pool: Any) -> dict[int, float]:
    """Processor seconds so far of each process of a pool, by its id."""
    pids = [helper.process.pid for helper in pool._helpers if helper.process is not None]
    return {pid: sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids}


async def in_turns(media: Any, counts: Sequence[int], files: Sequence[bytes], rounds: int) -> list[Turns]:
    """Let pools with these numbers of processes work on the files in turns; returns the turns of each pool."""
    import msgspec

    from core_media.processing.pool import ProcessingPool

    pools = [ProcessingPool(msgspec.structs.replace(media, num_workers=n, processor_cache_bytes=0)) for n in counts]
    found = [Turns() for _ in pools]
    try:
        for pool in pools:
            await Turns().take(pool, files)  # starts the processes
        for _ in range(rounds):
            for pool, turns in zip(pools, found, strict=True):
                await turns.take(pool, files)
    finally:
        await asyncio.gather(*(pool.close() for pool in pools))
    return found


def workers(llm: Any, rounds: int) -> dict[str, float]:
    """Pictures of 8 megapixels a second, with one process and with two, in turns.

    On a busy machine their processor seconds count: two processes are as many times faster as the one that has more to do
    computes less than one alone, if each has a processor of its own.
    """
    from core_media.config import media_of

    media = media_of(llm._config)
    assert media is not None
    files = [file_of(picture(index, 3264, 2448)) for index in range(8)]
    turns = asyncio.run(in_turns(media, (1, 2), files, rounds))
    one, two = (statistics.median(each.wall) for each in turns)
    alone, most = (statistics.median(each.busiest) for each in turns)
    return {
        "one a second": len(files) / one, "two a second": len(files) / two, "two / one": one / two,
        "processor seconds of one": alone, "of the busier of two": most, "by processor seconds": alone / most,
    }  # fmt: skip


def memory(llm: Any) -> dict[str, float]:
    """MiB of a processing process alone (USS) and with what it shares (RSS), behind a picture of 640 × 480."""
    from core_media.config import media_of
    from core_media.processing.pool import ProcessingPool

    media = media_of(llm._config)
    assert media is not None

    async def used() -> tuple[float, float]:
        pool = ProcessingPool(media)
        try:
            await pool.run(file_of(picture(0)))
            [helper] = pool._helpers
            assert helper.process is not None
            found = psutil.Process(helper.process.pid).memory_full_info()
            return found.uss / 2**20, found.rss / 2**20
        finally:
            await pool.close()

    own, whole = asyncio.run(used())
    return {"own MiB": own, "with shared MiB": whole}


def main() -> None:
    """Run the chosen parts and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--layers", type=int, default=4, help="layers of the tower and of the text model; SigLIP has 27"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    from core import LLM

    print(json.dumps({"machine": describe(), "layers": arguments.layers, "rounds": arguments.rounds}))
    run: dict[str, Callable[[Any], dict[str, float]]] = {
        "tower": lambda llm: tower(llm, arguments.layers, arguments.rounds),
        "again": lambda llm: again(llm, arguments.rounds),
        "workers": lambda llm: workers(llm, arguments.rounds),
        "memory": memory,
    }
    with tempfile.TemporaryDirectory(prefix="core-bench-") as folder:
        save_model(Path(folder), arguments.layers)
        with LLM(folder, dtype="bfloat16", max_model_len=2048, use_tqdm_on_load=False) as llm:
            for part in arguments.parts:
                found = run[part](llm)
                print(json.dumps({"part": part} | {name: round(value, 3) for name, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
