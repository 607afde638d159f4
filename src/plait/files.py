"""Values as files: YAML or JSON with a ``format`` field, read back with errors that name file and field."""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from plait.errors import FileError


class Value(BaseModel):
    """A frozen part of a file. Unknown fields are refused, so that a misspelt one is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class FileValue(Value):
    """A whole file: its ``format`` names the kind and version, as in ``plait-plan/1``."""

    kind: ClassVar[str]
    format: str

    def __init_subclass__(cls, *, kind: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kind:
            cls.kind = kind

    @classmethod
    def parse(cls, text: str, where: str = "text") -> Self:
        """The value that ``text`` (YAML, of which JSON is a part) holds; raises FileError."""
        try:
            data = _load(text)
        except yaml.YAMLError as error:
            raise FileError(f"{where}: not readable as YAML: {error}") from None
        if not isinstance(data, dict):
            raise FileError(f"{where}: expected fields (`name: value`), found {type(data).__name__}")
        return cls.from_data(data, where)

    @classmethod
    def from_data(cls, data: dict[str, Any], where: str) -> Self:
        """The value of a mapping as read from a file; raises FileError."""
        if data.get("format") != cls.kind:
            raise FileError(f"{where}: format: expected {cls.kind!r}, found {data.get('format')!r}")
        try:
            return cls.model_validate(data, context={"from_file": True})
        except ValidationError as error:
            raise FileError("\n".join(_describe(where, e) for e in _innermost(error.errors()))) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The value in the file at ``path``; raises FileError."""
        return cls.parse(read_text(path), str(path))

    def dump(self) -> str:
        """YAML text that ``parse`` reads back as an equal value."""
        data = self.model_dump(mode="json", exclude_defaults=True) | {"format": self.kind}
        ordered = {"format": data.pop("format")} | data
        return yaml.dump(ordered, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all; raises FileError."""
        write_text(path, self.dump())


def read_text(path: str | os.PathLike[str]) -> str:
    """The file's text; raises FileError with the path and the reason."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileError(f"{path}: cannot read: {reason}") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write atomically: a crash leaves the former file; raises FileError."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it private; a plan is meant to be shared
        os.replace(temporary, target)
    except OSError as error:
        raise FileError(f"{path}: cannot write: {error.strerror or error}") from None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _load(text: str) -> Any:
    if text.lstrip().startswith("{"):  # JSON is far faster to read than YAML
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            pass  # flow-style YAML begins like JSON
    return yaml.load(text, Loader=_Loader)  # noqa: S506


def _innermost(errors: list[Any]) -> list[Any]:
    """Without the errors that only follow from a wrong field inside: a list found empty since its item is wrong."""
    places = [e["loc"] for e in errors]
    return [e for e in errors if not any(p != e["loc"] and p[: len(e["loc"])] == e["loc"] for p in places)]


def _describe(where: str, error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown field; is it misspelt?"
    if error["type"] == "missing":
        message = "missing; it is required"
    return f"{where}: {field}: {message}" if field else f"{where}: {message}"


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Reads 1e-3 as a number, as YAML 1.2 does; to PyYAML it is text."""


class _Dumper(yaml.SafeDumper):
    """Blocks for structure, one line for lists of plain items: short files that diff well."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.SequenceNode:
    plain = all(not isinstance(item, (list, dict)) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=plain)


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d{1,3}$")
for _one in (_Loader, _Dumper):  # the dumper too, so that it puts quotes around text that looks like this
    _one.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
_Dumper.add_representer(list, _represent_list)
