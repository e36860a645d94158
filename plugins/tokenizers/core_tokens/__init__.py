"""Text to token ids and back: tokenizers, incremental detokenization, stop strings, chat templates. Imports no torch."""
