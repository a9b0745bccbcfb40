"""What holds for every test: foretrace's own stages are verified."""

import foretrace.cli
from tests import verified

assert foretrace.cli  # its modules hold the functions, too
verified.everywhere()
