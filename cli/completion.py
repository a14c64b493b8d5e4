# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl completion``: the completion script of a shell."""

from __future__ import annotations

import click

VARIABLE = "_MRCCTL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes mrcctl's commands, options and peers in a shell.

    \b
    bash  source <(mrcctl completion bash)      # in ~/.bashrc
    zsh   source <(mrcctl completion zsh)       # in ~/.zshrc, after compinit
    fish  mrcctl completion fish | source       # in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "mrcctl", VARIABLE).source())
