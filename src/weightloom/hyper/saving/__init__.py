"""Networks as files: safetensors to load again, ONNX to run without PyTorch."""

from weightloom.hyper.saving.files import export, load

__all__ = ["export", "load"]
