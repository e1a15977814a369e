"""``python -m fedlib.cli`` is the fedlib command, as ``python -m fedlib`` is."""

from fedlib.cli import main

if __name__ == "__main__":
    main()
