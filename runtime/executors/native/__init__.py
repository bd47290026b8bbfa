"""The native engine: its files, and the executor over its kernels."""
