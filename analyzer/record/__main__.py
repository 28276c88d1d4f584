"""`python -m analyzer.record -- script.py`."""

import sys

from analyzer.record.script import main

if __name__ == "__main__":
    sys.exit(main())
