"""A tokenizer that merges letters, and a model that samples them one by one."""

import asyncio

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from core.api.config import EngineConfig
from core.api.messages import EngineOutput, EngineOutputs, EngineRequest
from core_tokens.tokenizer import Tokenizer
from tests.apis.fake_engine import EOS, FakeClient

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] | trim) + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ANSWER = "all balls roll\n"


def merging_tokenizer() -> Tokenizer:
    """One token a byte, but "ll" is one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *alphabet, "ll"])}
    backend = Backend(models.BPE(vocab=vocab, merges=[("l", "l")]))
    backend.add_special_tokens(list(SPECIAL))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, bos_token_id=0, eos_token_id=EOS, chat_template=TEMPLATE)


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of each letter alone."""
    return [token for letter in text for token in tokenizer.encode(letter, add_special_tokens=False)]


class LettersClient(FakeClient):
    """Answers with `ANSWER`, letter by letter. seen: the prompts that came. A prompt with GO waits for `go` half way."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig) -> None:
        super().__init__(tokenizer)
        self.seen: list[list[int]] = []
        self.go = asyncio.Event()

    async def run(self, request: EngineRequest) -> None:
        self.seen.append(list(request.prompt_token_ids))
        ids = [*letters(self.tokenizer, ANSWER), EOS]
        waits = "GO" in self.tokenizer.decode(request.prompt_token_ids[-40:])
        for start, token in enumerate(ids):
            await asyncio.sleep(0)
            if waits and start == 3:
                await self.go.wait()
            output = EngineOutput(request.request_id, request.choice, start, [token])
            if start + 1 == len(ids):
                output.finish_reason = "stop"
                self.live.pop(request.key, None)
            self.on_outputs(EngineOutputs(0, [output], self.stats()))
