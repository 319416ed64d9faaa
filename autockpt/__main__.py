"""``python -m autockpt`` is the command ``autockpt``."""

from ._cli import main

if __name__ == "__main__":
    main(prog_name="autockpt")
