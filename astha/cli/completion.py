"""`astha completion`: the scripts that let a shell complete commands and options. click writes them."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from astha.cli.command_help import SHORT_HELP

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help=SHORT_HELP["completion"])
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the script that completes commands, options and their values in SHELL.

    The script calls `astha` at each TAB, so it stays right when commands are added.

    \b
    Examples:
      astha completion bash > ~/.local/share/bash-completion/completions/astha
      astha completion zsh > ~/.zfunc/_astha
      astha completion fish > ~/.config/fish/completions/astha.fish
    """
    root = click.get_current_context().find_root()
    writer = get_completion_class(shell)
    if writer is None:
        raise click.UsageError(f"click completes no {shell}")
    click.echo(writer(root.command, {}, "astha", "_ASTHA_COMPLETE").source())
