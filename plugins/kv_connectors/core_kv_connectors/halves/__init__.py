"""KV connectors of two halves: one beside the scheduler, which knows what is stored, and one that moves the bytes."""
