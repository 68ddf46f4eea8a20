"""`ftrie.Model`: a trained model."""

from __future__ import annotations

from model_store.artefact.artefact import Artefact


class Model:
    """A trained model: immutable."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
