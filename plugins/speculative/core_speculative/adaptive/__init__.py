"""How many drafts pay, learned from the steps of an engine: the step advice `adaptive`."""
