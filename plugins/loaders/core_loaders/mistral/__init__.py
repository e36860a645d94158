"""The loader of directories in Mistral's own layout: params.json and consolidated files."""
