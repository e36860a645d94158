"""A server of your own on `AsyncLLM`: `python examples/small_server.py [MODEL] --port 8000`, then

    curl localhost:8000/generate -d '{"prompt": "Once upon a time", "max_tokens": 32, "stream": true}'

A body is a prompt and fields of `SamplingParams`. Answers come whole as JSON, or with `"stream": true` as lines of JSON, each
with the text so far. `core serve` has keys, limits and OpenAI's API; this shows what is below it.
"""

import argparse
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from core import AsyncLLM, SamplingParams
from core.api.errors import CoreError


def create_app(llm: AsyncLLM) -> FastAPI:
    """Return an application with one route. The engine starts and ends with it."""
    numbers = itertools.count()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with llm:
            await llm.start()
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        try:
            body: dict[str, Any] = msgspec.json.decode(await request.body(), type=dict[str, Any])
            prompt, stream = str(body.pop("prompt", "")), bool(body.pop("stream", False))
            params = SamplingParams(**body)
            # The first output is awaited here, so that a request that the engine refuses is a 400 in both forms.
            outputs = llm.generate(prompt, params, f"request-{next(numbers)}")
            first = await anext(outputs)
        except (CoreError, msgspec.DecodeError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)

        async def texts() -> AsyncIterator[str]:
            yield first.outputs[0].text
            async for output in outputs:  # a client that leaves closes this generator, which aborts the request
                yield output.outputs[0].text

        if stream:
            return StreamingResponse(json.dumps({"text": text}) + "\n" async for text in texts())
        return JSONResponse({"text": [text async for text in texts()][-1]})

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", help="path or name; by default the embedded model")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    uvicorn.run(create_app(AsyncLLM(options.model)), host="127.0.0.1", port=options.port)
