"""Policies as they are named on the command line."""

from __future__ import annotations

from dataclasses import dataclass

from model_store.errors import InputError
from trainer.replaying.off_policy import LOGGED, UNIFORM

LEARNING = "learning"


@dataclass(frozen=True)
class PolicyName:
    """`logged`, `uniform`, `learning` or a model as `read_named` takes it; variant: None for all of them."""

    name: str
    variant: str | None

    @property
    def is_model(self) -> bool:
        """True if a published model has to be read."""
        return self.name not in (LOGGED, UNIFORM, LEARNING)

    @classmethod
    def parse(cls, text: str) -> PolicyName:
        """NAME, NAME:VERSION or FILE.arrow with @VARIANT or without; `learning`, `uniform`, `logged`.

        Raises InputError.
        """
        name, at, variant = text.rpartition("@") if "@" in text else (text, "", "")
        if not name or (at and not variant):
            raise InputError(
                f"--policy {text}: expected MODEL, MODEL:VERSION or FILE.arrow, then maybe @VARIANT"
            )
        if at and name in (LOGGED, UNIFORM):
            raise InputError(f"--policy {text}: {name} has no variants")
        return cls(name, variant or None)
