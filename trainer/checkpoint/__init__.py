"""State that survives: checkpoints of a training run, and how it goes on from one.

`file` is the byte layout, `description` what a run must know beside its model, `folder` the files of one run,
`schedule` when the next one is due, `keeper` what a run holds of all this. Nothing here knows how a model learns or
a log is read.
"""

from trainer.checkpoint.description import Description
from trainer.checkpoint.keeper import Checkpoint, Every, Keeper

__all__ = ["Checkpoint", "Description", "Every", "Keeper"]
