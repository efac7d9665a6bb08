"""`horsies completion`: the script that makes a shell complete our commands and options."""

import click
from click.shell_completion import get_completion_class

PROGRAM = "horsies"
VARIABLE = "_HORSIES_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, options and their values. Bash must be 4.4 or newer.

    \b
    horsies completion bash > ~/.local/share/bash-completion/completions/horsies
    horsies completion zsh > "${fpath[1]}/_horsies"
    horsies completion fish > ~/.config/fish/completions/horsies.fish
    """
    context = click.get_current_context().find_root()
    completes = get_completion_class(shell)
    if completes is None:  # a version of click that does not know it
        raise click.ClickException(f"this version of click has no completion for {shell}; upgrade click")
    click.echo(completes(context.command, {}, PROGRAM, VARIABLE).source())
