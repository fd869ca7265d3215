"""`make serve` with another model repository: `python -m load_tests.chaos.serve REPOSITORY`."""

import sys
from pathlib import Path

from scripts.launch.serve import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
