"""`python -m gpu_trace_advisor.record -- script.py`."""

import sys

from gpu_trace_advisor.record.script import main

if __name__ == "__main__":
    sys.exit(main())
