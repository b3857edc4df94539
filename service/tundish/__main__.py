"""``python -m tundish``."""

from tundish.cli import main

if __name__ == "__main__":
    main()
