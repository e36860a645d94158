"""The plugin framework: kinds, hooks, contracts, discovery, validation, selection. The only user of pluggy."""
