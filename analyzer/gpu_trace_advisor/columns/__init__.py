"""Arrays in columns: intervals, codes for repeated values, compact integers, exact durations."""
