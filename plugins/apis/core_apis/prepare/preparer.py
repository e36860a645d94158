"""The choice of where a request is prepared.

It is prepared on the event loop if it is tiny and renders no template, in a thread if it is small, else in a helper
process: one for small bodies, one for large ones.

Owns: `Preparer`, its two helpers, and the turns that tiny requests take on the loop, so that between any two of them
other connections are served. Never does: the steps themselves (`core_apis.prepare.preparation`). Called by: the intake.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from core.api.errors import RequestError
from core_apis.body_kinds import MODEL_NAME, BodyKind, Buffer, NamedModel
from core_apis.prepare.helper import PreparationHelper, preparation_lane
from core_apis.prepare.pictures import PicturePreparation
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.prepared import PreparationSettings
from core_apis.served_adapters import ServedAdapters
from core_frontend.io.pool import IOPool
from core_media.processing.sounds import Sounds
from core_media.sound.config import SoundConfig
from core_supervision.helpers.lane import Spawned
from core_tokens.tokenizer import Tokenizer

logger = logging.getLogger("core_apis")

TINY_BODY = 4 * 1024
"""Maximum size in bytes of a body that takes a few milliseconds at most, a delay that other clients hardly notice.

Tokenizing takes up to 2 ms for 1,000 characters.
"""
SMALL_BODY = 16 * 1024
"""Maximum size in bytes of a body that is prepared in a thread of this process: the tokenizer releases the
interpreter's lock.
"""
SMALL_AT_ONCE = 2
"""Maximum number of such threads: more of them would only wait for each other, and the event loop for all."""
MEDIUM_BODY = 1 << 20
"""Maximum size in bytes of a large body that the process for small ones takes while its own starts: reading it takes no
longer than that start, 0.3 s. The first turn of an agent after a restart or a pause does not wait for a process so.
"""
SMALL_PAIRS = 1024
"""The limit `SMALL_BODY` for a body whose texts are read in pairs: a query is tokenized once per document."""
SMALL_LANE = preparation_lane(job_seconds=20.0, most_jobs=4)
"""The lane of small bodies, so that no chat waits for a large one.

The process is started while the engine loads its weights, and stays: its start takes half a second.
"""
LARGE_LANE = preparation_lane(job_seconds=60.0, idle_seconds=120.0, niceness=5)
POOLING = "pooling"
"""Kind of the bodies that may have data for an IO processor."""
OF_ANY_MODEL = ("tokenize", "detokenize")
"""Kinds of bodies that a model which transcribes serves, too."""
NUM_UNRENDERED = 64
"""Number of requests without a template after which the process for small bodies is ended, if none had a template: a
server of completions has no use for its 50 MB.
"""
MOST_TEMPLATES = 4
"""Maximum number of adapters' own chat templates with helper processes, which take 50 MB each."""
TURN_SECONDS = 0.005
"""Seconds that tiny bodies may take in one iteration of the event loop; after that, each waits for an iteration of its
own.
"""


class Preparer:
    """The preparer of one server.

    here:     the preparation within this process; small, large: the helper processes.
    io:       makes prompts of the data of /pooling requests; None: the server has no IO processor.
    adapters: checks the names of models, where the server has adapters; None: the preparation does.
    """

    def __init__(self, settings: PreparationSettings, tokenizer: Tokenizer, io: IOPool | None = None) -> None:
        self.io = io
        self.adapters: ServedAdapters | None = None
        self.here = Preparation(settings, tokenizer)
        self.small = PreparationHelper(settings, tokenizer, SMALL_LANE)
        self.large = PreparationHelper(settings, tokenizer, LARGE_LANE)
        media = settings.media
        self._sound = None if media is None else media.sound
        self._sounds = None if media is None or media.sound is None else Sounds(media)
        self._pictures = None if media is None or media.sound is not None else PicturePreparation(media, self.here)
        self._own: dict[str, Preparer] = {}
        self._turn = asyncio.Lock()
        self._threads = asyncio.Semaphore(SMALL_AT_ONCE)
        self._spent_s = 0.0
        self._has_noted = False
        self._has_rendered = False
        self._num_unrendered = 0
        self._warms = settings.chat_template is not None
        self._needs_process = tokenizer.plug is not None  # a plugin may hang
        self._reads_pairs = settings.pooling is not None and settings.pooling.scores_pairs

    def warm(self, spawned: Spawned | None) -> None:
        """Set up the process for small bodies, so that the first chat does not wait for it.

        spawned: that process, if it runs already. Without a chat template it is the first one for large bodies instead.
        """
        if self._pictures is not None:
            self._pictures.warm()
        if self._sounds is not None:
            self._sounds.start()
        if self.io is not None:
            self.io.start()
        if self._warms:
            self.small.start(spawned)
        elif spawned is not None:
            self.large.start(spawned)

    async def prepare(self, kind: str, *pieces: Buffer, owner: str | None = None) -> Any:
        """Prepare a body of `kind` from its bytes. Raises RequestError if it cannot be served.

        pieces: the bytes. owner: the request's tenant, whose ids of media count; None: none are taken.
        """
        if self._sounds is not None and kind not in OF_ANY_MODEL:
            raise RequestError(
                f"The model '{self.here.names.now()[0]}' transcribes sounds and answers no prompts; use "
                "/v1/audio/transcriptions or /v1/audio/translations.",
                param="model",
            )
        row = self.here.bodies[kind]
        preparer = self
        if self.adapters is not None:
            template = await self.adapters.check_model(await self._model_of(pieces[row.before :]))
            if template is not None and row.may_render(pieces, SMALL_BODY):
                preparer = await self._with_template(template)
        if self.io is not None and kind == POOLING:
            pieces = (await self.io.body(b"".join(pieces)),)
        prepared = await preparer._prepare(row, pieces)
        if self._pictures is not None:
            await self._pictures.complete(prepared, owner)
        if getattr(getattr(prepared, "chat", prepared), "guided", False):
            self._note_guided()
        return prepared

    def transcribing(self) -> tuple[SoundConfig, Sounds]:
        """Return the settings of a model that transcribes, and what reads sounds. Raises RequestError for another model."""
        if self._sounds is None or self._sound is None:
            raise RequestError(
                f"The model '{self.here.names.now()[0]}' transcribes no sounds; serve one that does, such as Whisper.",
                param="model",
            )
        return self._sound, self._sounds

    async def forget_media(self) -> None:
        """Drop the processed pictures and sounds that are kept for later requests."""
        if self._pictures is not None:
            await self._pictures.forget()
        if self._sounds is not None:
            await self._sounds.forget()

    async def _model_of(self, pieces: Sequence[Buffer]) -> str | None:
        """Return the model that a body names; None: it names none."""
        num_bytes = sum(map(len, pieces))
        if num_bytes > SMALL_BODY:
            named = await self._helper(num_bytes).run(MODEL_NAME, *pieces)
        else:
            named = MODEL_NAME.decode(b"".join(pieces))
        return cast(NamedModel, named).model

    async def close(self) -> None:
        """End the helper processes."""
        if self._pictures is not None:
            await self._pictures.close()
        if self._sounds is not None:
            await self._sounds.close()
        if self.io is not None:
            await self.io.close()
        await asyncio.gather(self.small.close(), self.large.close(), *(own.close() for own in self._own.values()))

    async def _with_template(self, template: str) -> Preparer:
        """Return the preparer of an adapter's own chat template, with helper processes of its own."""
        own = self._own.pop(template, None)
        if own is None:
            settings = msgspec.structs.replace(self.here.settings, chat_template=template, tool_template=None)
            own = Preparer(settings, self.here.tokenizer)
        self._own[template] = own  # the newest last
        if len(self._own) > MOST_TEMPLATES:
            oldest = self._own.pop(next(iter(self._own)))
            await oldest.close()
        return own

    async def _prepare(self, kind: BodyKind, pieces: Sequence[Buffer]) -> Any:
        reads_pairs = self._reads_pairs and kind.pairs
        num_bytes = sum(map(len, pieces))
        renders = num_bytes <= SMALL_BODY and kind.may_render(pieces, SMALL_BODY)
        self._count(renders=renders or kind.renders)
        if num_bytes > (SMALL_PAIRS if reads_pairs else SMALL_BODY):
            return await self._helper(num_bytes).run(kind, *pieces)
        if reads_pairs or renders or self._needs_process:
            return await self.small.run(kind, *pieces)
        data = b"".join(pieces)
        if num_bytes > TINY_BODY:
            async with self._threads:
                return await asyncio.to_thread(self.here.run, kind.name, data)
        if self._spent_s < TURN_SECONDS:
            return self._run(kind.name, data)
        async with self._turn:  # the next owner of the lock continues in the next iteration of the loop
            return self._run(kind.name, data)

    def _helper(self, num_bytes: int) -> PreparationHelper:
        """Return the process for a large body: that for small ones while the other one starts, if it runs itself."""
        if num_bytes > MEDIUM_BODY or self.large.process is not None or self.small.process is None:
            return self.large
        self.large.start()
        return self.small

    def _count(self, *, renders: bool) -> None:
        """End the process for small bodies if nobody needs it. The next chat starts another."""
        self._has_rendered = self._has_rendered or self._needs_process or renders
        self._num_unrendered += not renders
        if self._num_unrendered >= NUM_UNRENDERED and not self._has_rendered and not self._reads_pairs:
            self.small.rest()

    def _note_guided(self) -> None:
        """Log once that tools are described in a system message."""
        if not self._has_noted:
            self._has_noted = True
            logger.warning(
                "The model's chat template shows no tools, so a system message describes them. A model that was not trained "
                "with tools may call them wrongly or not at all; tool_choice 'required' or a named tool holds it to a call."
            )

    def _run(self, kind: str, data: Buffer) -> Any:
        if not self._spent_s:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        begin = time.perf_counter()
        try:
            return self.here.run(kind, data)
        finally:
            self._spent_s += time.perf_counter() - begin

    def _begin_turn(self) -> None:
        self._spent_s = 0.0
