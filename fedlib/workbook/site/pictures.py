"""The figures of notebooks: smaller files, and a thumbnail of each notebook's first."""

import base64
import io
from pathlib import Path

from PIL import Image

from fedlib.workbook.notebooks import Notebook

COLOURS = 128  # plenty for lines and bands; a third of the bytes
WIDTH = 360  # of a thumbnail, twice what a page shows


def first(nb: Notebook) -> bytes | None:
    """The first figure of an executed notebook."""
    for cell in nb.node.cells:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                return base64.b64decode(output.data["image/png"])
    return None


def thumb(nb: Notebook) -> str:
    """The file of a notebook's thumbnail."""
    return f"{nb.name.replace('/', '-')}.png"


def thumbnail(nb: Notebook, folder: Path) -> None:
    if (found := first(nb)) is None:
        return
    picture = flat(Image.open(io.BytesIO(found)))
    picture.thumbnail((WIDTH, 10 * WIDTH))
    folder.mkdir(parents=True, exist_ok=True)
    picture.crop((0, 0, picture.width, min(picture.height, 2 * WIDTH // 3))).quantize(
        COLOURS, Image.Quantize.FASTOCTREE
    ).save(folder / thumb(nb))


def shrink(path: Path) -> None:
    """The same picture with fewer colours, where that is smaller."""
    smaller = io.BytesIO()
    flat(Image.open(path)).quantize(COLOURS, Image.Quantize.FASTOCTREE).save(smaller, "PNG", optimize=True)
    if smaller.tell() < path.stat().st_size:
        path.write_bytes(smaller.getvalue())


def flat(picture: Image.Image) -> Image.Image:
    """On white: figures are drawn for it."""
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
