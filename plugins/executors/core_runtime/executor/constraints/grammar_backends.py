"""Grammar backends of a worker, for the served vocabulary.

Owns: when they are loaded: with the first grammar, since most workers never see one. Never does: compile.
Called by: the worker, once.
"""

from __future__ import annotations

from functools import cached_property

from core.api.config import EngineConfig
from core.plugin.table import PluginTable
from core_grammars.vocabulary import grammar_vocabulary
from core_runtime.contracts import GrammarBackend, GrammarVocabulary, Loader
from core_runtime.executor.constraints.forced_text import ForcedTexts
from core_runtime.executor.constraints.grammars import Grammars
from core_runtime.executor.plugin_loading import load_plugin
from core_tokens.plugged import plug_of
from core_tokens.tokenizer import Tokenizer


class GrammarBackends:
    """Loads grammar backends, and the tokenizer that they need. vocab_size: entries of a row of logits."""

    def __init__(self, config: EngineConfig, plugins: PluginTable, vocab_size: int) -> None:
        self._config = config
        self._plugins = plugins
        self._vocab_size = vocab_size

    def load(self, name: str) -> GrammarBackend:
        """Load the named backend. Raises PluginError, and CheckpointError for a tokenizer that cannot be read."""
        options = {"vocabulary": self.vocabulary}
        backend: GrammarBackend = load_plugin(self._config, self._plugins, "grammar", name, options=options)
        return backend

    def encode(self, text: str) -> list[int]:
        """Tokenize a piece of an answer, without special tokens; nothing where a plugin tokenizes.

        The steps wait for this call, and nothing could end a plugin that hangs in it. What the model writes is learned in
        any case, so that a forced text is drafted from the second time on.
        """
        if self.tokenizer.plug is not None:
            return []
        return self.tokenizer.encode(text, add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        return self.vocabulary.tokens[token_id]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the answers, read on first use."""
        model = self._config.model
        loader: Loader = load_plugin(self._config, self._plugins, "loader", self._config.plugins.loader)
        source = loader.resolve(model.model).tokenizer
        return Tokenizer.from_source(source, model.tokenizer, model.tokenizer_mode, plug_of(self._config.plugins))

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        """Vocabulary from the checkpoint's tokenizer, made as in the process that compiles grammars."""
        return grammar_vocabulary(self.tokenizer, self._vocab_size, self._config.model.eos_token_ids)


def open_grammars(config: EngineConfig, plugins: PluginTable, vocab_size: int) -> Grammars:
    """Make the grammars of a worker; nothing is loaded yet. vocab_size: entries of a row of logits."""
    backends = GrammarBackends(config, plugins, vocab_size)
    texts = ForcedTexts(backends.encode, backends.token_bytes)
    return Grammars(backends.load, texts, vocab_size)
