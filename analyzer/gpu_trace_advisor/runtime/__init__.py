"""What sets up the process: start-up, memory, compiled loops, progress."""
