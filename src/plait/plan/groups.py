"""Rules that sort a model's parameters into the groups of an optimizer."""

from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field, model_validator

from plait.files import Value


class GroupRule(Value):
    """Options of the optimizer for the parameters that suit ``names`` and, if given, are in ``branches``."""

    names: tuple[str, ...] = Field(
        default=(),
        description="patterns of parameter names, as in a shell; all without",
        examples=[["*.bias", "*norm*"]],
    )
    branches: tuple[str, ...] = Field(default=(), description="branches as plait capture shows them; all without")
    options: dict[str, Any] = Field(description="for these parameters instead of the optimizer's own, such as lr")

    @model_validator(mode="after")
    def _check(self) -> "GroupRule":
        if not (self.names or self.branches):
            raise ValueError("give names, branches or both; what is for all parameters belongs to the optimizer")
        return self

    def suits(self, name: str, branches: frozenset[str]) -> bool:
        """Whether the rule is for the parameter ``name``, which layers of ``branches`` use."""
        named = not self.names or any(fnmatchcase(name, pattern) for pattern in self.names)
        return named and (not self.branches or not branches.isdisjoint(self.branches))
