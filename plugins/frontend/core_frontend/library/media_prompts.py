"""Media in the prompts of a script: `multi_modal_data`, and the parts of conversations.

Owns: their way to a prompt with items, whose processes start with the first item. Never does: decode an item
(`core_media` does). Called by: `LLMEngine`, `LLM.chat`, `AsyncLLM`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.api.config import EngineConfig
from core.api.errors import RequestError
from core_frontend.prompts.prompt_parser import MEDIA, MEDIA_KEYS, PromptInput
from core_media.config import AUDIO, media_of
from core_media.default_adapters import adapter_of
from core_media.processing.prompts import BlockingPrompts
from core_media.processing.sounds import BlockingSounds
from core_media.reading.given import DATA, given_media
from core_media.reading.given_sound import sound_file
from core_media.reading.parts import take_media
from core_media.reading.source import MediaSource
from core_media.sound.config import SoundConfig
from core_tokens.tokenizer import Tokenizer


class MediaReader:
    """The reader of one engine. refusal: why its model takes no media; empty where it does."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None, refusal: str) -> None:
        self._config = media_of(config)
        self._tokenizer = tokenizer
        self._refusal = refusal
        self._lock = threading.Lock()
        self._prompts: BlockingPrompts | None = None
        self._sounds: BlockingSounds | None = None

    @property
    def shown(self) -> dict[str, str]:
        """Return what is written for an item of each modality where a chat template takes no parts."""
        return {} if self._config is None else self._config.shown

    def read(self, prompt: PromptInput) -> PromptInput:
        """Return a prompt whose media are items; any other prompt as it is. Raises RequestError."""
        if self._config is not None and self._config.sound is not None:
            return self._with_sound(prompt)
        if not isinstance(prompt, Mapping) or not self.concerns(prompt):
            return prompt
        sources = given_media(prompt, self._config, self._refusal)
        left = {key: value for key, value in prompt.items() if key not in MEDIA_KEYS}
        if not sources:
            return left
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if self._tokenizer is not None and token_ids is not None:
            ids, items = self._reader().run_ids(_integers(token_ids), sources)
            return left | {"prompt_token_ids": ids, MEDIA: items}
        if self._tokenizer is None or not isinstance(text, str):
            raise RequestError(f"{DATA} belongs to a prompt of text or token ids; give 'prompt'.", param=DATA)
        return left | self.with_items(text, sources, self._tokenizer.encode)

    def adapter(self, prompt: PromptInput) -> str:
        """Return the name of the adapter of the media of a prompt that was read; empty: there is none. Raises RequestError."""
        items = prompt.get(MEDIA) if isinstance(prompt, Mapping) else None
        return adapter_of(items or (), self._config)

    def concerns(self, prompt: PromptInput) -> bool:
        """Whether `read` has something to do with a prompt."""
        if self._config is not None and self._config.sound is not None:
            return True
        return isinstance(prompt, Mapping) and any(prompt.get(name) for name in MEDIA_KEYS)

    def sounds(self) -> tuple[SoundConfig, BlockingSounds]:
        """Return what reads sounds, and the model's settings for them. Raises RequestError for a model that takes none."""
        if self._config is None or self._config.sound is None:
            reason = f" ({self._refusal})" if self._refusal else ""
            raise RequestError(f"This model transcribes no sounds{reason}; load one that does, such as Whisper.")
        with self._lock:
            if self._sounds is None:
                self._sounds = BlockingSounds(self._config)
            return self._config.sound, self._sounds

    def _with_sound(self, prompt: PromptInput) -> PromptInput:
        """Return a prompt for the first window of its sound. Raises RequestError."""
        if isinstance(prompt, Mapping) and prompt.get(MEDIA):
            return prompt
        data = prompt.get(DATA) if isinstance(prompt, Mapping) else None
        if not isinstance(prompt, Mapping) or not isinstance(data, Mapping) or set(data) != {AUDIO}:
            raise RequestError(
                f"{DATA} is missing; this model needs {{'{AUDIO}': a sound}} with each prompt.", param=DATA
            )
        if any(prompt.get(name) for name in MEDIA_KEYS if name != DATA):
            raise RequestError(f"A prompt with a sound has {DATA} alone; leave out its other settings.", param=DATA)
        config, reader = self.sounds()
        place = f"{DATA}['{AUDIO}']"
        sound = reader.read(sound_file(data[AUDIO], place), place)
        if sound.frames > config.frames:
            raise RequestError(f"{place} is longer than one window; use LLM.transcribe.", param=DATA)
        token_ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
        if token_ids is None:
            if not isinstance(text, str) or not text or self._tokenizer is None:
                raise RequestError("The prompt has neither 'prompt' nor 'prompt_token_ids'; give one.", param="prompt")
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        left = {key: value for key, value in prompt.items() if key not in MEDIA_KEYS}
        return left | {"prompt_token_ids": token_ids, MEDIA: [sound.item(0, config)]}

    def take(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[MediaSource]]:
        """Return a conversation as templates read it, and its media. Raises RequestError."""
        given = [dict(message) for message in messages]
        return given, take_media(given, self._config, self._refusal)

    def with_items(
        self, text: str, sources: Sequence[MediaSource], encode: Callable[[str], list[int]]
    ) -> dict[str, Any]:
        """Return the keys of a prompt with media. Raises RequestError. encode: tokenizes its text."""
        whole, token_ids, items = self._reader().run(text, sources, encode)
        return {"prompt": str.__str__(whole), "prompt_token_ids": token_ids, MEDIA: items}

    def _reader(self) -> BlockingPrompts:
        assert self._config is not None and self._tokenizer is not None
        with self._lock:  # an asyncio program reads prompts in several threads
            if self._prompts is None:
                self._prompts = BlockingPrompts(self._config, self._tokenizer)
            return self._prompts

    def close(self) -> None:
        """End the processes."""
        if self._prompts is not None:
            self._prompts.close()
            self._prompts = None
        if self._sounds is not None:
            self._sounds.close()
            self._sounds = None


def _integers(token_ids: Any) -> list[int]:
    """Return token ids of a prompt. Raises RequestError for anything else."""
    if not isinstance(token_ids, Sequence) or not all(isinstance(token, int) for token in token_ids):
        raise RequestError("prompt_token_ids is no list of whole numbers.", param="prompt_token_ids")
    return list(token_ids)
