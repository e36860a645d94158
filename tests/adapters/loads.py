"""10,000 loads and unloads leave memory where it was after 1,000: `python -m tests.adapters.loads`, `make test-adapter-memory`.

Owns: the loop, and the measurement. Never does: compare answers. Exit code: 0 when memory and maps stay flat, 1 otherwise.
"""

import argparse
import gc
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from core import LLM, SamplingParams
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.drawn import shapes_of, write_adapter
from tests.tiny_models import save_checkpoint

GROWTH_MB = 8.0
GROWTH_MAPS = 16
OWN = ("RssAnon:", "RssShmem:", "VmSwap:")
FIRST = 1_000
ASK_EVERY = 50
RANKS = (4, 8, 16, 8)


def main() -> int:
    """Load and unload, and say what it took."""
    parser = argparse.ArgumentParser(prog="python -m tests.adapters.loads", description=__doc__)
    parser.add_argument("--loads", type=int, default=10_000)
    options = parser.parse_args()
    if options.loads <= FIRST:
        parser.error(f"--loads {options.loads}: expected more than {FIRST}, after which memory is first read")
    with tempfile.TemporaryDirectory(prefix="loads-") as home:
        model = Path(home, "model")
        save_checkpoint(model)
        shapes = shapes_of(str(model))
        paths = [write_adapter(Path(home, str(seed)), shapes, rank, seed) for seed, rank in enumerate(RANKS)]
        early, late = looped(model, paths, options.loads, report_every=FIRST)
    is_flat = late.megabytes - early.megabytes <= GROWTH_MB and late.maps - early.maps <= GROWTH_MAPS
    return 0 if is_flat else 1


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds. megabytes: written by it. maps: ranges of its addresses, of files too."""

    megabytes: float
    maps: int


def looped(
    model: Path,
    paths: list[Path],
    loads: int,
    first: int = FIRST,
    ask_every: int = ASK_EVERY,
    report_every: int = 0,
) -> tuple[Held, Held]:
    """Return what this process holds after the first loads and after all. loads: more than `first`.

    report_every: print what it holds after as many loads again; 0: never.
    """
    begin = time.monotonic()
    llm = LLM(
        model=str(model),
        enable_lora=True,
        max_cpu_loras=2,
        max_lora_rank=64,
        max_model_len=128,
        kv_cache_memory_bytes=1 << 22,
    )
    try:
        for number in range(1, loads + 1):
            # Every name is new; every fourth one stands for other weights before it goes.
            adapters = [LoRARequest(f"name-{number}", number, str(paths[number % len(paths)]))]
            if number % 4 == 0:
                other = str(paths[(number + 1) % len(paths)])
                adapters.append(LoRARequest(f"name-{number}", number, other, load_inplace=True))
            for adapter in adapters:
                llm.add_lora(adapter)
            if number % ask_every == 0:
                named = LoRARequest(f"name-{number}", number)
                llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4), lora_request=named, use_tqdm=False)
            assert llm.remove_lora(number)
            if number == first:
                early = held_now()
            if report_every and number % report_every == 0:
                held = held_now()
                print(f"{held.megabytes:.1f} MB and {held.maps} maps after {number} loads", flush=True)
        print(f"{(time.monotonic() - begin) / loads * 1000:.1f} ms a load")
        return early, held_now()
    finally:
        llm.close()


def held_now() -> Held:
    """Read it from the kernel, for this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return Held(held_by("self"), len(maps))


def held_by(process: int | str) -> float:
    """Return the MB that a process has written itself.

    Pages of files that are only read are left out, for they say more about the machine than about this process: they come
    and go with its memory, and psutil's `uss` counts those of a library for as long as no other process has it open.
    """
    kilobytes = 0
    for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(OWN):
            kilobytes += int(line.split()[1])
    return kilobytes * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
