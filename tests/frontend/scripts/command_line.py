"""Arguments of an engine and of sampling from one command line."""

import dataclasses

from vllm import LLM, EngineArgs, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser


def parse_args():
    parser = FlexibleArgumentParser(description="offline generation")
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(max_model_len=128, tensor_parallel_size=1)
    own = parser.add_argument_group("sampling")
    own.add_argument("--temperature", type=float, default=0.0)
    own.add_argument("--max-tokens", type=int, default=6)
    return parser.parse_args()


def main(args):
    engine_args = EngineArgs.from_cli_args(args)
    llm = LLM(**dataclasses.asdict(engine_args))
    params = llm.get_default_sampling_params()
    params.temperature = args.temperature
    params.max_tokens = args.max_tokens
    outputs = llm.generate(["The first", "The second"], params, use_tqdm=False, lora_request=None)
    for output in outputs:
        print(f"{output.prompt!r} {len(output.outputs[0].token_ids)}")
    conversation = [{"role": "user", "content": "Hello"}]
    answers = llm.chat([conversation, conversation], sampling_params=SamplingParams(max_tokens=3), use_tqdm=False)
    print(len(answers), answers[0].outputs[0].finish_reason)


if __name__ == "__main__":
    main(parse_args())
