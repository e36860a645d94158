"""/v1/completions: continue prompts, read a stream again.

Owns: the row and its paths.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from core_apis.answers.completion_writer import CompletionAnswer
from core_apis.durable.resuming import read_again
from core_apis.exchange import Exchange, id_with
from core_apis.pipeline import answered

router = APIRouter(tags=["generation"])

PATH = "/v1/completions"
COMPLETION: Final = Exchange(kind="completion", identify=id_with("cmpl"), answer=CompletionAnswer, lasts=True)
EXCHANGES: Final = (COMPLETION,)


@router.post(PATH)
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    return await answered(request, COMPLETION)


@router.get(PATH + "/{answer_id}")
async def read_completion(request: Request, answer_id: str) -> Response:
    """Read the events of a kept stream again."""
    return await read_again(request, COMPLETION.kind, answer_id)
