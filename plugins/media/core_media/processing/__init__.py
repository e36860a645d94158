"""Processing of pictures with the processors of transformers, in helper processes."""
