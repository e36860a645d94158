"""The IO processor: passages of a document, ordered by the similarity of their vectors to the question's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from core.api.errors import RequestError
from core_frontend.io.contract import Output, Prompts

MAX_PASSAGES = 256
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """The data of a request. passages: how many the answer has."""

    question: Text
    document: Text
    passages: Annotated[int, msgspec.Meta(ge=1, le=MAX_PASSAGES)] | None = None


class Passages:
    """Implements `core_frontend.io.contract.IOProcessor`."""

    def __init__(self, arguments: Any) -> None:
        self._passages = arguments.passages

    def parse_request(self, data: Any) -> Request:
        """Return the data as a Request."""
        try:
            request = msgspec.convert(data, Request)
        except msgspec.ValidationError as error:
            raise RequestError(f"data: {error}", param="data") from error
        if not 0 < len(_split(request.document)) <= MAX_PASSAGES:
            raise RequestError(
                f"data.document: expected 1 to {MAX_PASSAGES} passages between empty lines.", param="data"
            )
        return request

    def pre_process(self, data: Request) -> Prompts:
        """Return the question, then the passages."""
        return Prompts([data.question, *_split(data.document)], {"task": "embed", "use_activation": True})

    def post_process(self, data: Request, outputs: Sequence[Output]) -> Any:
        """Return the best passages; vectors have length 1, so that products are cosines."""
        question, *passages = (np.asarray(output.data) for output in outputs)
        scores = [float(passage @ question) for passage in passages]
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: data.passages or self._passages]
        texts = _split(data.document)
        return {"passages": [{"index": index, "text": texts[index], "score": scores[index]} for index in best]}


def _split(document: str) -> list[str]:
    return [passage.strip() for passage in document.split("\n\n") if passage.strip()]
