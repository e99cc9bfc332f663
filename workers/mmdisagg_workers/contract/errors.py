"""What can be wrong with the facts a decode engine is given.

    ContractError               something needed for a right answer is missing or malformed
    ├── GridError               grid (`image_grid_thw`, `video_grid_thw`)
    ├── ShapeError              shape of an embedding
    ├── CountMismatchError      rows of an embedding against the placeholders of the prompt
    ├── DtypeError              element type of an embedding or a value
    ├── TimingError             timing field of a video
    ├── IdentityError           media identity
    ├── DescriptorError         wire form of a tensor
    └── UnknownFamilyError      model family

Each is the client's or a peer's fault, never a transient condition: an HTTP 400, or a refused start.
"""

from __future__ import annotations

_SHOWN = 120


class ContractError(ValueError):
    """A fact is missing or wrong; nothing was guessed and nothing was allocated.

    Attributes:
        field: name of the field at fault, as the API spells it.
        value: the value seen (shown shortened).
        remedy: what to do, as one sentence.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        """Keep the three parts; the text of the exception shows all of them."""
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field}: got {_shown(value)}; {remedy}")


class GridError(ContractError):
    """The grid of a picture or video is missing, empty, or no triple of positive integers."""


class ShapeError(ContractError):
    """The shape of an embedding is no sequence of positive integers, or too large."""


class CountMismatchError(ContractError):
    """An embedding has another number of rows than its grid has placeholder tokens."""


class DtypeError(ContractError):
    """An element type that the wire form does not carry."""


class TimingError(ContractError):
    """A video's timing is missing or malformed; without it temporal positions would be wrong."""


class IdentityError(ContractError):
    """A media identity that is no lower-case hexadecimal hash."""


class DescriptorError(ContractError):
    """A tensor descriptor that this version does not understand."""


class UnknownFamilyError(ContractError):
    """A model whose decode contract is not known."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
