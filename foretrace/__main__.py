"""`python -m foretrace` is the command `foretrace`."""

import sys

from foretrace.frontends.cli import main

if __name__ == "__main__":
    sys.exit(main())
