"""``python -m modelserver`` is the command ``modelserver``."""

import sys

from modelserver.run.cli import main

if __name__ == "__main__":
    sys.exit(main())
