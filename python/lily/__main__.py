"""`python -m lily` is the command `lily`."""

import sys

from .cli import main

sys.exit(main())
