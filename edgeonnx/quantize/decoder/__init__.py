"""Weights of decoders as integers of 8 or 4 bits: what generating one token at a time is bound by is reading them."""

from edgeonnx.quantize.decoder.ending import last_position
from edgeonnx.quantize.decoder.quantize import quantize_decoder
from edgeonnx.quantize.decoder.recipe import WEIGHT_RECIPES, Role, WeightFormat, WeightRecipe

__all__ = ["WEIGHT_RECIPES", "Role", "WeightFormat", "WeightRecipe", "last_position", "quantize_decoder"]
