"""`python -m gpu_trace_advisor` is `advise`."""

import sys

from gpu_trace_advisor.cli import main

if __name__ == "__main__":
    sys.exit(main())
