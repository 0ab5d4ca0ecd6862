"""Base class of the data models: immutable, unknown fields rejected, own errors.

A pydantic ValidationError is raised again as the class's own GpumapError.
"""

from reprlib import repr as short
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler  # as in 2.7
from typing_extensions import TypeAliasType

from gpumap.errors import GpumapError
from gpumap.mapping.pages import OwnPage

if TYPE_CHECKING:  # pydantic has no public name for it
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

__all__ = ["Count", "FrozenModel", "Index"]

# In help() they are the words Index and Count.
Index = TypeAliasType("Index", Annotated[int, Field(strict=True, ge=0)])
Count = TypeAliasType("Count", Annotated[int, Field(strict=True, ge=1)])


class _ModelPage(OwnPage, ModelMetaclass):
    """The metaclass of pydantic's models, with a page of ours."""


class FrozenModel(BaseModel, metaclass=_ModelPage):
    """An immutable data model that is written to and read from JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    raises: ClassVar[type[GpumapError]] = GpumapError

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401 - pydantic's own signature
        try:
            return handler(data)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, e['loc'])) or 'all of it'}: {e['msg']} "
                f"(got {short(e['input'])})"
                for e in error.errors()
            ]
            raise cls.raises(
                f"this is not a valid {cls.__name__}.",
                "; ".join(problems) + ".",
                f"Correct the fields named; help(gpumap.{cls.__name__}) lists them.",
            ) from None
