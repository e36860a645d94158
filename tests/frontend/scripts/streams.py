"""Streams of one engine, side by side."""

import asyncio
import sys

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def stream(engine, name):
    params = SamplingParams(max_tokens=6, temperature=0.0, output_kind=RequestOutputKind.DELTA, ignore_eos=True)
    count = 0
    async for output in engine.generate(request_id=name, prompt=f"Tell me of {name}", sampling_params=params):
        for completion in output.outputs:
            count += len(completion.token_ids)
    return count


async def main():
    args = AsyncEngineArgs(model=sys.argv[2], max_model_len=128, kv_cache_memory_bytes="8M", enforce_eager=True)
    engine = AsyncLLM.from_engine_args(args)
    try:
        print(await asyncio.gather(*[stream(engine, name) for name in ("rivers", "hills")]))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
