"""`python -m dreamgym.cli`."""

import sys

from dreamgym.cli.main import main

sys.exit(main())
