"""Run ``python -m fitting``."""

import sys

from fitting.cli import main

sys.exit(main())
