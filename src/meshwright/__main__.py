"""``python -m meshwright``."""

import sys

from meshwright.cli import main

sys.exit(main())
