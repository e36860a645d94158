"""A page for chats made with Streamlit, beside a running server (`make serve`): `pip install streamlit openai`, then

    streamlit run --server.address 127.0.0.1 examples/streamlit_page.py -- http://127.0.0.1:8000/v1

Streamlit runs this file again for each message. The conversation lies in the session's state, and the server finds all but its
last turn in the prefix cache.
"""

import sys

import streamlit
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1", api_key="none")
turns = streamlit.session_state.setdefault("turns", [])

for turn in turns:
    streamlit.chat_message(turn["role"]).write(turn["content"])
if question := streamlit.chat_input("Ask"):
    turns.append({"role": "user", "content": question})
    streamlit.chat_message("user").write(question)
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id, messages=turns, max_tokens=256, stream=True
    )
    text = streamlit.chat_message("assistant").write_stream(stream)
    turns.append({"role": "assistant", "content": str(text)})
