"""The content encoder in int8: a sentence-transformers model as ONNX, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from indexer.errors import EncoderError
from indexer.learn.onnx_file import cpu_session, onnx_bytes
from indexer.learn.quantise import int8_by_batch
from indexer.learn.smoothing import smoothed

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_EXAMPLE = ["one text of some words", "another"]
_TYPICAL = """\
Organic green tea, 20 bags. Beverages. Yunnan Gardens. A light tea with a flowery taste.
Stainless steel water bottle 750 ml. Sports & outdoors. Keeps drinks cold for 24 hours and hot for 12.
Women's running shoes, size 39, blue/white. Shoes > Running. Breathable mesh, cushioned sole.
USB-C charging cable 2m (3-pack). Electronics. Braided nylon, 60W, for phones and tablets.
Whole milk, 1 gal. Dairy. Store brand
The old man and the sea. Books. Paperback, 127 pages, English.
Wooden toy train set with 52 pieces and bridge. Toys. For ages 3 and up.
Kids' T-shirt "Dinosaur", cotton. Clothing
LED desk lamp, dimmable; 5 colours; touch control!
Frozen pizza margherita 12 oz. Frozen food
Wireless over-ear headphones with noise cancelling, 30 h battery, black. Audio.
Dog food, chicken & rice, 15 kg. Pet supplies. Complete food for adult dogs of all breeds.
Ceramic mug 350ml - handmade. Kitchen. Dishwasher safe
A4 copy paper 80 g/m2, 500 sheets. Office
Garden hose 25 m with spray gun. Garden
Shampoo for dry hair, 250 ml. Beauty. With argan oil, without silicone.
Chocolate chip cookies. Snacks
Men's leather belt. Accessories. 110 cm, brown
Bluetooth speaker, waterproof IPX7
Olive oil extra virgin 1 l. Italy
4K television 55 inch, HDR10, smart TV. Electronics. Two years of warranty.
Baby wipes 6 x 80. Baby care. Without perfume
Yoga mat 183 x 61 cm, 6 mm. Fitness
Gift card
Red wine, Rioja Reserva 2018, 0.75 l. Wine
Set of 6 knives with block. Kitchen & dining. Forged steel.
Replacement filter no. 4711 for vacuum cleaner X200
Sofa bed, three seats, grey. Furniture. Assembly needed; delivery to the kerb.
Batteries AA alkaline 1.5V, pack of 24
Ground beef 80/20. Meat""".splitlines()
"""What activations are measured on: fixed, so that a model has one int8 form whatever it is to encode."""
_TYPICAL_BATCH = 6
_OUTPUT = "vectors"


def encoder_bytes(model: SentenceTransformer) -> bytes:
    """The whole model as ONNX: token tensors [batch, tokens] -> vectors float32 [batch, d].

    Raises EncoderError when its texts are not made into tensors of that shape, as those of a transformer are.
    """
    features = _tensors(model, _EXAMPLE)
    if not features or any(each.ndim != 2 or len(each) != len(_EXAMPLE) for each in features.values()):
        raise EncoderError(
            "index.encoder.precision int8 expects a model that takes tensors [batch, tokens], as transformers do; "
            f"this one takes { {name: tuple(each.shape) for name, each in features.items()} }"
        )
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=model.max_seq_length)
    return onnx_bytes(
        _Vectors(model, list(features)),
        tuple(features.values()),
        list(features),
        [_OUTPUT],
        {name: {0: batch, 1: tokens} for name in features},
    )


class Int8Encoder:
    """Weights in int8 by output channel, activations in uint8 with a range by batch; runs on the CPU, in any thread.

    A vector depends a little on the texts of its batch, since they share the ranges.
    """

    def __init__(self, model: SentenceTransformer, threads: int) -> None:
        batches = [_TYPICAL[first : first + _TYPICAL_BATCH] for first in range(0, len(_TYPICAL), _TYPICAL_BATCH)]
        typical = [{name: each.numpy() for name, each in _tensors(model, batch).items()} for batch in batches]
        self.model = int8_by_batch(smoothed(encoder_bytes(model), typical))
        self._session = cpu_session(self.model, threads)

    def encode(self, tokenizer: SentenceTransformer, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32 [len(texts), d]; `tokenizer` is not to be shared by threads."""
        features = _tensors(tokenizer, texts)
        wanted = [each.name for each in self._session.get_inputs()]
        (vectors,) = self._session.run([_OUTPUT], {name: features[name].numpy() for name in wanted})
        return np.asarray(vectors, np.float32)


class _Vectors(nn.Module):
    def __init__(self, model: SentenceTransformer, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, first: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> Tensor:
        """The sentence embeddings of a batch; the exporter wants arguments one by one."""
        given = (each for each in (first, second, third) if each is not None)
        found = self.model(dict(zip(self.names, given, strict=True)))
        return torch.as_tensor(found["sentence_embedding"])


def _tensors(model: SentenceTransformer, texts: Sequence[str]) -> dict[str, Tensor]:
    features: dict[str, Any] = model.preprocess(list(texts))
    return {name: each for name, each in features.items() if isinstance(each, Tensor)}
