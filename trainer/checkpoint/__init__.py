"""State that survives a run: checkpoints, and what a run needs to resume from one.

`file` is the byte layout, `description` what a run stores beside its model, `folder` the checkpoints of one run,
`schedule` when the next one is due.
"""

from trainer.checkpoint.description import Description
from trainer.checkpoint.folder import Checkpoint, Checkpoints

__all__ = ["Checkpoint", "Checkpoints", "Description"]
