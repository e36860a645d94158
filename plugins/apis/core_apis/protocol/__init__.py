"""Request and response bodies as msgspec Structs, with OpenAI's and vLLM's field names. No I/O, no engine."""
