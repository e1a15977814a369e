"""Where the workbook is: the clone this package was imported from. An installed package has none."""

from pathlib import Path

from fedlib.core.errors import FedlibError

ROOT = Path(__file__).resolve().parents[2]
IN_CLONE = (ROOT / "papers").is_dir() and (ROOT / "notebooks").is_dir()


def require_clone(what: str) -> None:
    """Raise unless the notebooks and papers are there; ``what`` begins the sentence, such as 'fedlib report'."""
    if not IN_CLONE:
        raise FedlibError(
            f"{what} needs the workbook's clone (notebooks/ and papers/), and this fedlib is installed without it: "
            "clone the repository and run 'pip install -e .' there."
        )
