"""The schema of engine arguments, each a field of one group's Struct. Owns: declaration, parsing, conversion and help. Never
does: decide what a value means (`core_config` does), import plugins or torch. Called by: plugins, configuration, commands, LLM.
"""
