"""Request and response bodies as msgspec Structs under OpenAI's and vLLM's field names. No I/O, no engine."""
