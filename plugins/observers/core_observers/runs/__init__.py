"""The history of an engine's good starts: plugins, choices, results of the probe, times; and plugins that are in quarantine."""
