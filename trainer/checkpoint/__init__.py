"""Checkpoints of a training run: the byte layout, the description, the folder and the schedule."""

from trainer.checkpoint.description import Description
from trainer.checkpoint.keeper import Checkpoint, Every, Keeper

__all__ = ["Checkpoint", "Description", "Every", "Keeper"]
