"""Command groups that import a command only when it is run: `--help` stays fast."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Part(NamedTuple):
    """A command that lives in another module."""

    module: str
    name: str  # in the module: a `typer.Typer`, or a function that becomes the command
    help: str  # printed in the list of commands without importing the module


class LazyGroup(TyperGroup):
    """Lists `parts` beside its own commands, and imports only the one that is run.

    Contexts and commands are `Any` here: they are click's in older releases of Typer and its own in newer ones.
    """

    parts: ClassVar[dict[str, Part]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *self.parts]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.parts:
            return super().get_command(ctx, cmd_name)
        help_text = self.parts[cmd_name].help
        return TyperCommand(cmd_name, help=help_text, short_help=help_text)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if ctx.resilient_parsing or not args or args[0] not in self.parts:
            return super().resolve_command(ctx, args)
        command = _load(self.parts[args[0]])
        command.name = args[0]
        command.short_help = self.parts[args[0]].help
        return args[0], command, args[1:]


def _load(part: Part) -> Any:
    found = getattr(importlib.import_module(part.module), part.name)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
        single.command()(found)
        found = single
    return typer.main.get_command(found)
