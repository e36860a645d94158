"""Location of models: paths, hub names, files and downloads."""
