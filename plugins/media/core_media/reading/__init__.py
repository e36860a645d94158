"""Reading of the parts of messages and prompts that hold media."""
