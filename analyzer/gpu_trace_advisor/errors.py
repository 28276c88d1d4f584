"""What can go wrong, each with the exit code that the command line gives it.

    AdviseError (2)
    ├── UnreadableTrace   the file is no trace that can be read
    ├── NothingToAnalyse  it is a trace, but holds nothing for what was asked
    └── BadUsage          the request itself cannot be met

A message is one line: the file, what was found and where, and what to do.
"""


class AdviseError(Exception):
    """Anything that `advise` says in one line instead of a result."""

    exit_code = 2


class UnreadableTrace(AdviseError):
    """The file is no trace that can be read."""


class NothingToAnalyse(AdviseError):
    """A trace, but with nothing in it for what was asked."""


class BadUsage(AdviseError):
    """The request cannot be met on this trace."""
