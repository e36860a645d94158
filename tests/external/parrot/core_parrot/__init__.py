"""An executor without a model and without torch."""
