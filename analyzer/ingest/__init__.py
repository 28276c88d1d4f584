"""Reading a recording, whatever its format, into a Trace."""
