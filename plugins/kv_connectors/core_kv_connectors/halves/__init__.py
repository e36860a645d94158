"""KV connectors of two halves: one beside the scheduler that knows what is stored, and one in the worker that moves the bytes."""
