"""The format of peft: a directory with adapter_config.json and the adapter's tensors."""
