"""LoRA files: every public layout told apart, checked against a transformer's modules and reported on. No torch."""

from realchar.lora.report import Report, examine
from realchar.lora.target import Target, target_in

__all__ = ["Report", "Target", "examine", "target_in"]
