"""`python -m experiments` is the command line."""

import sys

from experiments.cli import main

sys.exit(main())
