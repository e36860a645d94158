"""The loader of torch's own files: `*.bin`, `*.pt`, `*.pth`."""
