"""A page for chats made with Gradio, beside a running server (`make serve`): `pip install gradio openai`, then

    python examples/gradio_page.py http://127.0.0.1:8000/v1

and open the address that it prints. Gradio listens on 127.0.0.1 and sends nothing elsewhere. The server has a page of its own
at its root; this shows how a page of yours begins.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # it is read during the import

import gradio
from openai import OpenAI


def page(url: str) -> Any:
    """Return a page whose answers come from the server at `url`, word by word."""
    client = OpenAI(base_url=url, api_key="none")

    def answer(message: str, history: list[dict[str, Any]]) -> Iterator[str]:
        turns = [{"role": turn["role"], "content": turn["content"]} for turn in history]
        turns.append({"role": "user", "content": message})
        stream = client.chat.completions.create(
            model=client.models.list().data[0].id, messages=turns, max_tokens=256, stream=True
        )
        text = ""
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                yield text

    return gradio.ChatInterface(answer, title="core", api_name="chat")


if __name__ == "__main__":
    page(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1").launch(server_name="127.0.0.1")
