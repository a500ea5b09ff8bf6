"""`python -m ui`: the same as `realchar ui`."""

import sys

from realchar.cli import main

if __name__ == "__main__":
    sys.exit(main(["ui", *sys.argv[1:]]))
