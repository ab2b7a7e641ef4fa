"""`python -m dreamgym`."""

import sys

from dreamgym.cli import main

sys.exit(main())
