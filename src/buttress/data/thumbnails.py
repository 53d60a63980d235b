"""The first images of a dataset as HTML, for notebooks."""

from __future__ import annotations

import base64
import io
from html import escape

import torch
from PIL import Image
from torch import Tensor

from buttress.data.core import Dataset

MAX_IMAGES = 10
SIDE = 64  # pixels of a thumbnail


def dataset_html(data: Dataset) -> str:
    """The line that describes a dataset, then thumbnails with their classes."""
    rows = torch.arange(min(MAX_IMAGES, len(data)))
    batch = data.take(rows)
    figures = "".join(
        f'<figure style="display:inline-block;margin:4px;text-align:center">'
        f'<img width="{SIDE}" height="{SIDE}" style="image-rendering:pixelated" '
        f'src="data:image/png;base64,{encode_png(image)}" alt="{escape(name, quote=True)}">'
        f'<figcaption style="font-size:small">{escape(name)}</figcaption></figure>'
        for image, name in zip(batch.x, (data.classes[y] for y in batch.y.tolist()), strict=True)
    )
    return f"<div>{escape(repr(data))}<br>{figures}</div>"


def encode_png(image: Tensor) -> str:
    """An image (C, H, W) in [0, 1] with one or three channels as base64; others show the first."""
    channels = image if image.shape[0] == 3 else image[:1].expand(3, -1, -1)
    pixels = (channels * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()
