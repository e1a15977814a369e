"""``python -m fedlib`` is the fedlib command."""

from fedlib.cli import main

if __name__ == "__main__":
    main()
