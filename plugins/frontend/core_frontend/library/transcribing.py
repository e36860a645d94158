"""Transcriptions of a script: `LLM.transcribe`.

Owns: sending what transcriptions ask to the engine, those of several sounds together. Never does: decide what to ask
(`core_media.sound.transcription` does). Called by: users, through `LLM`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from core.api.config import EngineConfig
from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.batch_run import Progress
from core_frontend.library.media_prompts import MediaReader
from core_frontend.prompts.prompt_parser import MEDIA, PromptInput
from core_media.reading.given_sound import sound_file
from core_media.sound.transcription import Ask, Asking, Task, Transcript, Transcription, prompt_tokens
from core_tokens.tokenizer import Tokenizer

PLACE = "sounds"


class TranscriptionMethods:
    """The methods of `LLM` for models that transcribe."""

    _config: EngineConfig
    _media: MediaReader

    @abstractmethod
    def _run(
        self,
        prompts: list[PromptInput],
        params: Sequence[SamplingParams],
        priority: Sequence[int],
        use_tqdm: Progress,
        explain: None,
    ) -> list[RequestOutput]:
        """Run prompts; return the outputs in their order."""

    @abstractmethod
    def _need_tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Raises ConfigError without one."""

    def transcribe(
        self,
        sounds: Any | Sequence[Any],
        *,
        task: str = "transcribe",
        language: str = "",
        prompt: str = "",
        temperature: float | Sequence[float] = 0.0,
        timestamps: bool = False,
        words: bool = False,
        compression_ratio_threshold: float | None = None,
        logprob_threshold: float | None = None,
        no_speech_threshold: float | None = None,
        condition_on_prev_tokens: bool = False,
        seed: int | None = None,
        use_tqdm: Progress = False,
    ) -> list[Transcript]:
        """Return the text of sounds of any length, each a file's path or bytes, or (samples, samples a second).

        task: `transcribe`, or `translate` into English.
        language: code of the sounds' language; empty: it is found, in each.
        prompt: text before the sounds, such as names that they hold.
        temperature: one, or several, which are tried until a text passes the thresholds. These are transformers'.
        timestamps: whether segments have times; those of a sound longer than a window have them anyway.
        words: whether segments have their words with times, in `words`; needs `enable_word_times=True`.
        condition_on_prev_tokens: whether the text of a window goes before the next one.
        Raises RequestError before anything runs if any sound or argument is wrong.
        """
        config, reader = self._media.sounds()
        given = list(sounds) if isinstance(sounds, list) else [sounds]
        if task not in ("transcribe", "translate"):
            raise RequestError(f"task is {task!r}; expected 'transcribe' or 'translate'.", param="task")
        tokenizer = self._need_tokenizer()
        encode = partial(tokenizer.encode, add_special_tokens=False)
        wanted = Task(
            task=task,
            language=language,
            prompt=prompt_tokens(prompt, config, encode),
            temperatures=temperature if isinstance(temperature, Sequence) else (temperature,),
            times=timestamps,
            words=words,
            compression=compression_ratio_threshold,
            logprob=logprob_threshold,
            no_speech=no_speech_threshold,
            continues=condition_on_prev_tokens,
            seed=seed,
        )
        running: list[tuple[Transcription, Asking]] = []
        for index, sound in enumerate(given):
            place = f"{PLACE}[{index}]"
            read = reader.read(sound_file(sound, place), place)
            one = Transcription(read, wanted, config, self._config.model.vocab_size, tokenizer.decode)
            running.append((one, one.run()))
        self._ask([asking for _, asking in running], use_tqdm)
        return [one.transcript for one, _ in running]

    def _ask(self, askings: list[Asking], use_tqdm: Progress) -> None:
        """Run transcriptions to their ends; what all of them ask at a time is one batch."""
        asks: list[tuple[Asking, Ask]] = [(each, next(each)) for each in askings]
        while asks:
            prompts: list[PromptInput] = [{"prompt_token_ids": ask.prompt, MEDIA: [ask.item]} for _, ask in asks]
            outputs = self._run(prompts, [ask.params for _, ask in asks], [0] * len(asks), use_tqdm, None)
            following = []
            for (asking, _), output in zip(asks, outputs, strict=True):
                try:
                    following.append((asking, asking.send(output)))
                except StopIteration:
                    continue
            asks = following
