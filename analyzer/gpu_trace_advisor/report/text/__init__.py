"""The report to read in a terminal."""
