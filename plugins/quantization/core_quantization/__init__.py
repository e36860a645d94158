"""Built-in quantization methods: one package a method."""
