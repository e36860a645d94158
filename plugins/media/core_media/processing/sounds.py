"""The sounds of a server or a script, from their files to spectrograms.

Owns: the way through the processing processes. Never does: decode one (a process does). Called by: the routes of
transcriptions; `LLM`, through `BlockingSounds`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

from core.api.errors import RequestError
from core_media.config import AUDIO, MediaConfig
from core_media.processing.pool import ProcessingPool
from core_media.sound.windows import Sound


class Sounds:
    """The sounds of one server."""

    def __init__(self, config: MediaConfig) -> None:
        self._pool = ProcessingPool(config)

    async def read(self, data: bytes, place: str) -> Sound:
        """Return a sound. place: where a request has it. Raises RequestError."""
        try:
            processed = await self._pool.run(data, modality=AUDIO)
        except RequestError as error:
            raise RequestError(
                f"{place}: {error}.", param=place, status=error.status, code=error.code, retry_after=error.retry_after
            ) from None
        return await asyncio.to_thread(Sound.of, processed)  # an hour's takes a while to copy

    def start(self) -> None:
        """Start the processes ahead of the first sound."""
        self._pool.start()

    async def forget(self) -> None:
        """Drop the processed sounds that are kept for later prompts."""
        await self._pool.forget()

    async def close(self) -> None:
        """End the processes."""
        await self._pool.close()


class BlockingSounds:
    """The same for a caller that blocks, with an event loop in a thread of its own. `close` ends both."""

    def __init__(self, config: MediaConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sounds", daemon=True)
        self._thread.start()
        self._sounds = asyncio.run_coroutine_threadsafe(_made(config), self._loop).result()

    def read(self, data: bytes, place: str) -> Sound:
        """Do what `Sounds.read` does. Raises RequestError."""
        return asyncio.run_coroutine_threadsafe(self._sounds.read(data, place), self._loop).result()

    def close(self) -> None:
        """End the processes and the thread."""
        asyncio.run_coroutine_threadsafe(self._sounds.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def wav_of(samples: Any, rate: int) -> bytes:
    """Return samples [n] or [n, channels] as the bytes of a wav file of float32, without a loss."""
    values = np.ascontiguousarray(samples, np.float32)
    channels = 1 if values.ndim == 1 else values.shape[1]
    body = values.tobytes()
    head = np.array([16], "<u4").tobytes() + np.array([3, channels], "<u2").tobytes()
    head += np.array([rate, rate * 4 * channels], "<u4").tobytes() + np.array([4 * channels, 32], "<u2").tobytes()
    data = b"data" + np.array([len(body)], "<u4").tobytes() + body
    return b"RIFF" + np.array([len(head) + len(data) + 8], "<u4").tobytes() + b"WAVEfmt " + head + data


async def _made(config: MediaConfig) -> Sounds:
    return Sounds(config)
