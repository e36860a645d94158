"""Gradio: examples/gradio_page.py asks twice over its own HTTP interface. Prints the answers as JSON."""

import json
import runpy
import sys

from gradio_client import Client

example, url = sys.argv[1:]
demo = runpy.run_path(example)["page"](url)
_, address, _ = demo.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
client = Client(address, verbose=False)
answers = [client.predict(question, api_name="/chat") for question in ("Hello!", "What did I say?")]
demo.close()
print(json.dumps(answers))
