"""The slice decoder (§3.2): each pixel of a slice from those before it in raster order, and from the encoder's state.

B batch · t h w extents of a slice · F features of a pixel · D hidden size
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from framecast.config import LayerConfig, ModelConfig
from framecast.model.convolutions import MaskedConvolution
from framecast.model.embeddings import AxisPositions
from framecast.model.layer import LayerStack

if TYPE_CHECKING:
    from jaxtyping import Float


class SliceDecoder(nn.Module):
    """With `conditioned=False`, the decoder of the first slice alone (Kinetics), which has no encoder to listen to."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Iterable[LayerConfig],
        num_features: int,
        active_features: int,
        *,
        conditioned: bool = True,
    ) -> None:
        super().__init__()
        hidden_size = config.hidden_size
        # Applied to one-hot codes, this is the sum of the codes' embeddings.
        self.embedding = nn.Linear(num_features, config.embedding_size, bias=False)
        self.convolution = MaskedConvolution(config.masked_kernel, config.embedding_size, hidden_size)
        self.positions = AxisPositions(config.slice_shape, hidden_size)
        self.condition = nn.Linear(hidden_size, hidden_size, bias=False) if conditioned else None
        self.layers = LayerStack(config, layers, masked=True)
        nn.init.normal_(self.embedding.weight, std=active_features**-0.5)
        if self.condition is not None:
            nn.init.normal_(self.condition.weight, std=hidden_size**-0.5)

    def forward(
        self, features: Float[Tensor, "B t h w F"], z: Float[Tensor, "B t h w D"] | None = None
    ) -> Float[Tensor, "B t h w D"]:
        """y^L. `features` are those of the slice itself; a pixel's state depends only on pixels before it."""
        y = self.convolution(self.embedding(features)) + self.positions()
        if self.condition is not None:
            assert z is not None
            y = y + self.condition(z)
        return self.layers(y)
