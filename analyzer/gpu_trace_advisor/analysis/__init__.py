"""One device's window and everything that is read off it."""
