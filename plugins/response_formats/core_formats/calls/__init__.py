"""Bodies of tool calls: reading, writing and grammars, by kind."""
