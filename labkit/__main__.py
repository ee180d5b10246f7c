"""``python -m labkit`` is the same program as ``labkit``."""

import sys

from labkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
