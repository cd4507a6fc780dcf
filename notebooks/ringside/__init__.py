"""Ringside."""
from .launch import torchrun
