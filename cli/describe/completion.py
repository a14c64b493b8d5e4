# SPDX-License-Identifier: GPL-2.0-only
"""``mrcctl completion``: the completion script of a shell, and its words with colons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
)

VARIABLE = "_MRCCTL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes mrcctl's commands, options and names in a shell.

    \b
    bash  source <(mrcctl completion bash)      # in ~/.bashrc
    zsh   source <(mrcctl completion zsh)       # in ~/.zshrc, after compinit
    fish  mrcctl completion fish | source       # in ~/.config/fish/config.fish

    Names are those that exist: of peers, planes, paths, elements of the fabric, and labs with
    their hosts. Links (p1t0-1:p1t1-2) are offered once a colon has been typed.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "mrcctl", VARIABLE).source())


def joined(words: Sequence[str]) -> list[str]:
    """Return the words as typed: bash splits p1t0-1:p1t1-2 into three, the second of them a colon.

    No word of mrcctl begins with a colon, so one always belongs to the word before it.
    """
    whole: list[str] = []
    for word in words:
        if whole and (word.startswith(":") or whole[-1].endswith(":")):
            whole[-1] += word
        else:
            whole.append(word)
    return whole


class Bash(BashComplete):
    """Bash's completion, where a word may have a colon in it."""

    _cut = 0  # the characters before the last colon, which bash keeps

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to complete, and that one."""
        before, typed = super().get_completion_args()
        if not typed:
            return joined(before), typed
        *whole, last = joined([*before, typed])
        self._cut = last.rfind(":") + 1
        return whole, last

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return a line for the script; bash replaces only what follows the last colon."""
        item.value = item.value[self._cut :]
        return super().format_completion(item)


def register() -> None:
    """Have click use `Bash`."""
    add_completion_class(Bash)
