"""State that survives a run: checkpoints, and what a run needs to resume from one.

`file` is the byte layout, `folder` the checkpoints of one run, with what it stores beside its model.
"""

from trainer.checkpoint.folder import Checkpoint, Checkpoints, Description

__all__ = ["Checkpoint", "Checkpoints", "Description"]
