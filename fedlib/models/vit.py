"""A small vision transformer. Names tell the parts apart: ``blocks.0.attention.qkv``, ``blocks.0.mlp.fc1``."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import FedlibError
from fedlib.models.base import MODELS, Net, image

HEAD = 64  # numbers per attention head, whatever the width


class Embedding(nn.Module):
    """Patches to tokens, a class token in front, learned positions added."""

    def __init__(self, shape: tuple[int, ...], patch: int, dim: int):
        super().__init__()
        channels, height, width = shape
        tokens = 1 + (height // patch) * (width // patch)
        self.position = nn.Parameter(torch.randn(tokens, dim))
        self.token = nn.Parameter(torch.randn(1, dim))
        self.patch = nn.Conv2d(channels, dim, patch, stride=patch)  # = one linear map of each patch

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return torch.cat((self.token.expand(len(x), 1, -1), x), 1) + self.position


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * heads * HEAD, bias=False)
        self.out = nn.Linear(heads * HEAD, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (self.heads, HEAD)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = (q @ k.transpose(2, 3) * HEAD**-0.5).softmax(-1) @ v
        return F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.gelu(self.fc1(self.norm(x))), self.dropout, self.training)
        return F.dropout(self.fc2(x), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.mlp = MLP(dim, hidden, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class ViTNet(Net):
    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        patch: int,
        dim: int,
        depth: int,
        heads: int,
        hidden: int,
        dropout: float,
    ):
        super().__init__()
        self.dropout = dropout
        self.embedding = Embedding(shape, patch, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, hidden, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.dropout(self.embedding(x), self.dropout, self.training)
        return self.norm(self.blocks(x)[:, 0])  # of the class token


@MODELS.register("vit")
class ViT:
    """The vision transformer of FedLWS and FedAWA: patches of 4, 6 blocks of 512; 9,523,722 parameters on CIFAR-10."""

    patch: int = 4
    dim: int = 512
    depth: int = 6
    heads: int = 8
    mlp: int = 512  # hidden width of the MLP part
    dropout: float = 0.1

    def __post_init__(self):
        if min(self.patch, self.dim, self.depth, self.heads, self.mlp) < 1 or not 0 <= self.dropout < 1:
            raise FedlibError("vit(…) needs sizes of at least 1 and a dropout in [0, 1).")

    def build(self, shape: tuple[int, ...], classes: int) -> Net:
        image(self.name, shape, smallest=self.patch)
        if shape[1] % self.patch or shape[2] % self.patch:
            raise FedlibError(
                f"vit(patch={self.patch}) cannot tile images of shape {shape}: choose a patch that divides them."
            )
        return ViTNet(shape, classes, self.patch, self.dim, self.depth, self.heads, self.mlp, self.dropout)
