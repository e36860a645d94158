"""A transcription: what to ask the engine next, until the whole sound has its text.

Owns: the order of transformers' long form: language, windows, fallbacks to higher temperatures. Never does: send a request,
decode a sound. Called by: `LLM.transcribe`, the routes of transcriptions; each sends what is yielded and returns the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from core.api.errors import RequestError
from core.api.messages import MediaItem
from core.api.sampling_params import SamplingParams
from core_media.sound.config import HOP_SECONDS, STEP_SECONDS, SoundConfig
from core_media.sound.rules import rules_of, spoken_rules
from core_media.sound.windows import Segment, Sound, compression, known_before, most_before, segments_of
from core_media.sound.words import Word, words_of

FALLBACK: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
CERTAIN: Final = 0.5
"""Below this temperature a window's text is good enough to go before the next window."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: the tokens of the prompt, its window and its parameters."""

    prompt: list[int]
    item: MediaItem
    params: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is wanted of a sound.

    task:         `transcribe` or `translate` (into English).
    language:     code of the sound's language; empty: it is found.
    prompt:       tokens of text before the sound.
    temperatures: tried in this order, until a text passes the thresholds.
    times:        whether times are wanted; a sound longer than a window has them anyway.
    compression, logprob, no_speech: thresholds; None: not applied.
    continues:    whether the text of a window goes before the next one.
    wants_no_speech: whether each window's probability that nobody speaks is wanted.
    words:        whether the times of words are wanted.
    """

    task: str = "transcribe"
    language: str = ""
    prompt: Sequence[int] = ()
    temperatures: Sequence[float] = (0.0,)
    times: bool = False
    compression: float | None = None
    logprob: float | None = None
    no_speech: float | None = None
    continues: bool = False
    seed: int | None = None
    wants_no_speech: bool = False
    words: bool = False


@dataclass(slots=True)
class Transcript:
    """The text of a sound. language: its code; empty: the model knows one. segments: complete ones, in order."""

    seconds: float
    language: str = ""
    segments: list[Segment] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> list[Word]:
        """All words, where they are wanted."""
        return [word for segment in self.segments for word in segment.words]


Asking = Generator[Ask, Any, None]
"""Yields requests; each is answered with a finished output, as `LLM.generate` returns."""


class Transcription:
    """One sound's transcription.

    vocab_size: of the model. decode: text of tokens. run: what to ask, see `Asking`; `transcript` has all segments of the
    windows that are done.
    """

    def __init__(
        self, sound: Sound, task: Task, config: SoundConfig, vocab_size: int, decode: Callable[[list[int]], str]
    ) -> None:
        check(task, config)
        self.transcript = Transcript(sound.seconds, task.language)
        self._sound = sound
        self._task = task
        self._config = config
        self._vocab_size = vocab_size
        self._decode = decode
        self._times = task.times or sound.frames > config.frames
        self._continues = task.continues

    def run(self) -> Asking:
        """Ask for all windows, one after the other."""
        config, transcript = self._config, self.transcript
        if config.languages and not transcript.language:
            codes = {token: code for code, token in config.languages.items()}
            params = SamplingParams(
                temperature=0.0, max_tokens=1, allowed_token_ids=list(codes), ignore_eos=True, detokenize=False
            )
            output = yield Ask([config.start], self._sound.item(0, config), params)
            transcript.language = codes[output.outputs[0].token_ids[0]]
        seek = 0
        while seek < self._sound.frames:
            num_frames = min(config.frames, self._sound.frames - seek)
            window = yield from self._window(seek)
            if window is None:
                seek += num_frames
                continue
            found, step = segments_of(window.tokens, seek, num_frames, config)
            self._set_words(found, window.times)
            for segment in found:
                segment.temperature = window.temperature
                segment.avg_logprob = window.avg_logprob
                segment.no_speech_prob = window.no_speech_prob
                segment.text = self._decode([token for token in segment.tokens if token < config.end])
            transcript.segments += found
            # A time of 0 at the end would hear the same window for ever; transformers does.
            seek += step or num_frames

    def _window(self, seek: int) -> Generator[Ask, Any, Segment | None]:
        """Return a window's tokens and facts, from the first temperature at which they pass; None: nobody speaks."""
        item = self._sound.item(seek, self._config)
        prompt = self._prompt()
        facts, is_silent = yield from self._heard(prompt, item, seek)
        if is_silent:
            return None
        spoken = facts.tokens[:-1]
        if facts.tokens and facts.tokens[-1] == self._config.end:
            facts.tokens.pop()
        if self._task.words and spoken:
            steps = yield from self._steps(prompt, item, spoken, seek)
            facts.times = [seek * HOP_SECONDS + step * STEP_SECONDS for step in steps]
        return facts

    def _heard(self, prompt: list[int], item: MediaItem, seek: int) -> Generator[Ask, Any, tuple[Segment, bool]]:
        """Return a window's tokens, with their end if there is one, and whether nobody speaks."""
        task = self._task
        no_speech = math.nan
        is_silent = False
        for number, temperature in enumerate(task.temperatures):
            output = yield Ask(prompt, item, self._params(len(prompt), temperature, seek))
            [completion] = output.outputs
            tokens = list(completion.token_ids)
            average = (completion.cumulative_logprob or 0.0) / max(len(tokens), 1)
            squeezed = compression(tokens, self._vocab_size) if tokens else 0.0
            fails = task.compression is not None and squeezed > task.compression
            is_unlikely = task.logprob is not None and average < task.logprob
            is_asked = task.wants_no_speech or (is_unlikely and task.no_speech is not None)
            if is_asked and math.isnan(no_speech):
                no_speech = yield from self._no_speech(prompt, item)
            is_silent = is_unlikely and task.no_speech is not None and no_speech > task.no_speech
            self._continues = task.continues and temperature < CERTAIN
            if is_silent or not (fails or is_unlikely) or number == len(task.temperatures) - 1:
                break
        known = 0.0 if math.isnan(no_speech) else no_speech
        return Segment(0.0, 0.0, tokens, seek, temperature, average, known), is_silent

    def _steps(
        self, prompt: list[int], item: MediaItem, spoken: list[int], seek: int
    ) -> Generator[Ask, Any, list[int]]:
        """Return the steps of time at which tokens of a window are said; the engine answers with tokens of times."""
        config = self._config
        heard = math.ceil(self._sound.seconds / HOP_SECONDS - 1e-6) - seek
        params = SamplingParams(
            temperature=0.0,
            max_tokens=len(spoken),
            ignore_eos=True,
            detokenize=False,
            extra_args=spoken_rules(config, spoken, max(min(heard, config.frames), 2)),
        )
        output = yield Ask(prompt, item, params)
        return [token - config.first_time for token in output.outputs[0].token_ids]

    def _set_words(self, found: Sequence[Segment], times: Sequence[float]) -> None:
        """Set the times of the tokens of a window's segments, and their words.

        Each token lasts from the time of the one before it, in its window, to its own.
        """
        if not times:
            return
        config, place = self._config, 0
        for segment in found:
            ends = [times[min(place + index, len(times) - 1)] for index in range(len(segment.tokens))]
            before = times[place - 1] if place else segment.seek * HOP_SECONDS
            spans = list(zip([before, *ends], ends, strict=False))
            text = [index for index, token in enumerate(segment.tokens) if token < config.end]
            segment.times = ends
            segment.words = words_of(
                [segment.tokens[index] for index in text],
                [spans[index] for index in text],
                self.transcript.language,
                self._decode,
            )
            place += len(segment.tokens)

    def _prompt(self) -> list[int]:
        """Return the tokens before a window's text."""
        task, config = self._task, self._config
        segments = self.transcript.segments
        before: list[int] = []
        if self._continues and (segments or task.prompt):
            before = known_before(segments, task.prompt, config)
        elif task.prompt:
            before = known_before((), task.prompt, config)
        start = [config.start]
        if self.transcript.language and config.languages:
            start.append(config.languages[self.transcript.language])
        if config.tasks:
            start.append(config.tasks[task.task])
        return before + start + ([] if self._times else [config.no_times])

    def _params(self, length: int, temperature: float, seek: int) -> SamplingParams:
        seed = None if self._task.seed is None else self._task.seed + seek
        return SamplingParams(
            temperature=temperature,
            max_tokens=self._config.context - length,
            seed=seed,
            logprobs=0,
            detokenize=False,
            extra_args=rules_of(self._config, times=self._times),
        )

    def _no_speech(self, prompt: list[int], item: MediaItem) -> Generator[Ask, Any, float]:
        """Return the probability that nobody speaks, of the token after the transcript's start."""
        config = self._config
        until = len(prompt) - prompt[::-1].index(config.start)
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        output = yield Ask([*prompt[:until], config.no_speech], item, params)
        return math.exp(output.prompt_logprobs[-1][config.no_speech].logprob)


def check(task: Task, config: SoundConfig) -> None:
    """Raise RequestError for what the model cannot do."""
    if task.language and task.language not in config.languages:
        known = ", ".join(sorted(config.languages)) or "none: the model knows one language, and is not told it"
        raise RequestError(f"language is {task.language[:50]!r}; expected one of {known}.", param="language")
    if task.task == "translate" and "translate" not in config.tasks:
        raise RequestError("The model does not translate; use /v1/audio/transcriptions.", param="model")
    if task.words and not config.words:
        why = "the server was started without --enable-word-times"
        if not config.heads:
            why = "the checkpoint's generation_config.json has no alignment_heads"
        raise RequestError(f"Times of words are not served: {why}.", param="timestamp_granularities")
    if not task.temperatures:
        raise RequestError("temperature is an empty list; expected one number at least.", param="temperature")


def prompt_tokens(text: str, config: SoundConfig, encode: Callable[[str], list[int]]) -> list[int]:
    """Return the tokens of a user's prompt: its last ones, if there are too many. Raises RequestError."""
    if not text.strip():
        return []
    if config.previous is None:
        raise RequestError("The model takes no prompt: it has no token for text before a sound.", param="prompt")
    return encode(" " + text.strip())[-most_before(config) :]
