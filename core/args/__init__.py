"""The schema of engine arguments: every argument is declared once, as a field of one group's Struct.

Owns: declaration, parsing, conversion, precedence and help of arguments. Never does: decide what a value means for the
engine (`core_config` does), import plugins or torch. Called by: plugin (plugins' own arguments), config, cli, LLM.
"""
