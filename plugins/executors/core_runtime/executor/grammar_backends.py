"""The grammar plugins of a worker, for the served vocabulary.

Owns: when they are loaded: with the first grammar, since most workers never see one. Never does: compile.
Called by: `core_runtime.executor.grammars`.
"""

from __future__ import annotations

from functools import cached_property

from core.api.config import EngineConfig
from core.plugin.table import PluginTable
from core_grammars.vocabulary import grammar_vocabulary
from core_runtime.contracts import GrammarBackend, GrammarVocabulary, Loader
from core_runtime.executor.plugin_loading import load_plugin
from core_tokens.tokenizer import Tokenizer


class GrammarBackends:
    """vocab_size: entries of a row of logits."""

    def __init__(self, config: EngineConfig, plugins: PluginTable, vocab_size: int) -> None:
        self._config = config
        self._plugins = plugins
        self._vocab_size = vocab_size

    def load(self, name: str) -> GrammarBackend:
        """The backend of that name. Raises PluginError, and CheckpointError for a tokenizer that cannot be read."""
        options = {"vocabulary": self.vocabulary}
        backend: GrammarBackend = load_plugin(self._config, self._plugins, "grammar", name, options=options)
        return backend

    def encode(self, text: str) -> list[int]:
        """The tokens of a piece of an answer."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The text of a token."""
        return self.vocabulary.tokens[token_id]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """That of the answers."""
        model = self._config.model
        loader: Loader = load_plugin(self._config, self._plugins, "loader", self._config.plugins.loader)
        source = loader.resolve(model.model).tokenizer
        return Tokenizer.from_source(source, model.tokenizer, model.tokenizer_mode)

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        """Read from the checkpoint's tokenizer, as the process that compiles has done it."""
        return grammar_vocabulary(self.tokenizer, self._vocab_size, self._config.model.eos_token_ids)
