"""Streamlit: examples/streamlit_page.py, run by Streamlit's own means of tests, is asked twice. Prints the answers as JSON."""

import json
import sys

from streamlit.testing.v1 import AppTest

example, url = sys.argv[1:]
sys.argv = [example, url]
page = AppTest.from_file(example, default_timeout=100).run()
for question in ("Hello!", "What did I say?"):
    page.chat_input[0].set_value(question).run()
    assert not page.exception, page.exception
turns = page.session_state["turns"]
shown = [message.markdown[0].value for message in page.chat_message]
assert shown == [turn["content"] for turn in turns], shown
print(json.dumps([turn["content"] for turn in turns if turn["role"] == "assistant"]))
