"""Chrome traces, as torch.profiler writes them."""
