"""Requests that are added while the engine steps."""

import argparse

from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.logger import init_logger
from vllm.utils import random_uuid

logger = init_logger(__name__)


def main():
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(parser.parse_args()))
    waiting = [
        ("A robot may not injure", SamplingParams(temperature=0.0, max_tokens=4)),
        ("To be or not to be", SamplingParams(n=2, temperature=0.8, top_k=5, max_tokens=5)),
        ("It is only with the heart", SamplingParams(n=3, temperature=0.9, top_p=0.9, max_tokens=6, logprobs=1)),
    ]
    while waiting or engine.has_unfinished_requests():
        if waiting:
            prompt, params = waiting.pop(0)
            engine.add_request(random_uuid(), prompt, params)
        outputs: list[RequestOutput] = engine.step()
        for output in outputs:
            if output.finished:
                print(len(output.outputs), [len(one.token_ids) for one in output.outputs])
    logger.info("done")


if __name__ == "__main__":
    main()
