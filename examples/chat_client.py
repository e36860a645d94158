"""Chat with a running server (`make serve`), word by word: `python examples/chat_client.py "Why is the sky blue?"`."""

import sys

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
question = " ".join(sys.argv[1:]) or "What is the capital city of Japan?"
stream = client.chat.completions.create(
    model=client.models.list().data[0].id,
    messages=[{"role": "user", "content": question}],
    max_tokens=128,
    stream=True,
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
