"""Study this machine's GPU from this folder alone, after measure.py: no network, no installation.

python3 gpu-kit/study.py --minutes 9 --out FOLDER

Starts as measure.py does, which says what it needs and where it writes. Only the standard library is used.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.exit(runpy.run_path(str(Path(__file__).resolve().with_name("measure.py")))["start"]("study", *sys.argv[1:]))
