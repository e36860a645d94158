"""/v1/audio/transcriptions and /v1/audio/translations: the text of a sound.

Owns: the two routes, from the body to the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from core.api.errors import RequestError
from core_apis.answers.event_stream import EventStream
from core_apis.audio.fields import Wanted, read_fields
from core_apis.audio.formats import MEDIA_TYPES, TranscriptDelta, TranscriptDone, event, usage_of, written
from core_apis.audio.running import segments_run
from core_apis.context import ServingContext, context_of, tenant_of, user_of
from core_apis.forms import TYPE, read_form
from core_apis.intake import intake
from core_apis.server.disconnect import until_disconnect
from core_apis.server.middleware import client_request_id
from core_media.sound.transcription import Transcription

router = APIRouter(tags=["audio"])
Taken = tuple[Transcription, Wanted]


@router.post("/v1/audio/transcriptions")
async def create_transcription(request: Request) -> Response:
    """Return the text of a sound in its own language."""
    return await _answered(request, "transcribe")


@router.post("/v1/audio/translations")
async def create_translation(request: Request) -> Response:
    """Return the text of a sound in English."""
    return await _answered(request, "translate")


async def _answered(request: Request, task: str) -> Response:
    context = context_of(request)
    tenant = tenant_of(request)
    prepare = partial(_prepared, context, request.headers.get("content-type", ""), task)
    async with intake(context, request, tenant, prepare, content_type=TYPE) as ((one, wanted), arrival):
        answer_id = f"transcript-{client_request_id(request.headers) or uuid4().hex}"
        texts = segments_run(context, one, arrival, user_of(context, tenant, wanted.user), answer_id)
        if wanted.stream:
            try:
                first = await until_disconnect(request.receive, anext(texts, ""))
            except BaseException:
                await texts.aclose()
                raise
            return EventStream(_events(one, first, texts))
        await until_disconnect(request.receive, _run(texts))
        asked = wanted.task
        content = written(one.transcript, wanted.form, asked.task, words=asked.words, segments=wanted.segments)
        return Response(content, media_type=MEDIA_TYPES.get(wanted.form, "text/plain"))


async def _prepared(context: ServingContext, content_type: str, task: str, *pieces: bytearray) -> Taken:
    """Read a body: its fields first, then the sound. Raises RequestError."""
    config, sounds = context.preparer.transcribing()
    form, file = await asyncio.to_thread(read_form, pieces, content_type)
    here = context.preparer.here
    here.check_model("".join(form.fields.get("model", [])[:1]) or None)
    encode = partial(here.tokenizer.encode, add_special_tokens=False)
    wanted = read_fields(form, task, config, encode)
    if form.filename is None:
        raise RequestError("The form has no file; expected a sound in 'file'.", param="file")
    sound = await sounds.read(file, "file")
    one = Transcription(sound, wanted.task, config, context.model.vocab_size, here.tokenizer.decode)
    return one, wanted


async def _run(texts: AsyncGenerator[str, None]) -> None:
    async with aclosing(texts):
        async for _ in texts:
            continue


async def _events(one: Transcription, first: str, texts: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(texts):
        if first:
            yield event(TranscriptDelta(first))
        async for text in texts:
            yield event(TranscriptDelta(text))
    yield event(TranscriptDone(one.transcript.text, usage_of(one.transcript)))
