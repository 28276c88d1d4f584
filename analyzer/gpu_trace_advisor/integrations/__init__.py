"""Where people already are: PyTorch's profiler hook, trainers, coding agents."""
