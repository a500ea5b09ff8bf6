"""Preprocessing: any picture file in, the exact RGB picture that the model will see out (CPU only)."""

from realchar.images.options import NATIVE_AREA, PreparedPicture, PrepareOptions, rejection
from realchar.images.prepare import prepare

__all__ = ["NATIVE_AREA", "PrepareOptions", "PreparedPicture", "prepare", "rejection"]
