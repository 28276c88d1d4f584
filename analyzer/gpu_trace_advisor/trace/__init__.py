"""The trace model, and what names of kernels, operators and software mean."""
