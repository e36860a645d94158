"""10,000 loads and unloads leave memory where it was after 1,000: `python -m tests.adapters.loads`, `make test-adapter-memory`.

Owns: the loop, and the measurement. Never does: compare answers. Exit code: 0 when memory stays flat, 1 otherwise.
"""

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path

import psutil

from core import LLM, SamplingParams
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.drawn import shapes_of, write_adapter
from tests.tiny_models import save_checkpoint

GROWTH_MB = 8.0
FIRST = 1_000
ASK_EVERY = 50
RANKS = (4, 8, 16, 8)


def main() -> int:
    """Load and unload, and say what it took."""
    parser = argparse.ArgumentParser(prog="python -m tests.adapters.loads", description=__doc__)
    parser.add_argument("--loads", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loads-") as home:
        model = Path(home, "model")
        save_checkpoint(model)
        shapes = shapes_of(str(model))
        paths = [write_adapter(Path(home, str(seed)), shapes, rank, seed) for seed, rank in enumerate(RANKS)]
        early, late = looped(model, paths, options.loads)
    print(f"{early:.1f} MB after {FIRST} loads, {late:.1f} MB after {options.loads}")
    return 0 if late - early <= GROWTH_MB else 1


def looped(model: Path, paths: list[Path], loads: int) -> tuple[float, float]:
    """Return the megabytes of this process after the first loads and after all."""
    early = 0.0
    begin = time.monotonic()
    llm = LLM(model=str(model), enable_lora=True, max_cpu_loras=2, max_model_len=128, kv_cache_memory_bytes=1 << 22)
    try:
        for number in range(1, loads + 1):
            # Every name is new; every fourth one stands for other weights before it goes.
            adapters = [LoRARequest(f"name-{number}", number, str(paths[number % len(paths)]))]
            if number % 4 == 0:
                other = str(paths[(number + 1) % len(paths)])
                adapters.append(LoRARequest(f"name-{number}", number, other, load_inplace=True))
            for adapter in adapters:
                llm.add_lora(adapter)
            if number % ASK_EVERY == 0:
                named = LoRARequest(f"name-{number}", number)
                llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4), lora_request=named, use_tqdm=False)
            assert llm.remove_lora(number)
            if number == FIRST:
                early = resident()
        print(f"{(time.monotonic() - begin) / loads * 1000:.1f} ms a load")
        return early, resident()
    finally:
        llm.close()


def resident() -> float:
    """Megabytes that are this process's own."""
    gc.collect()
    return float(psutil.Process().memory_full_info().uss) / 1e6


if __name__ == "__main__":
    sys.exit(main())
