"""The loader of Hugging Face directories with safetensors files."""
