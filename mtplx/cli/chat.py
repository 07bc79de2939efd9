"""`mtplx chat`: the terminal conversation."""

from functools import partial

import typer

from mtplx.cli.model import load_model
from mtplx.cli.options import Request, takes_request


@takes_request
def chat(request: Request) -> None:
    """Talk with a model in the terminal.

    Ctrl-C stops a reply, Ctrl-D leaves, /help lists the commands. Where standard input is no
    terminal, each of its lines is a message.
    """
    params = request.params()  # wrong values are told before anything is loaded

    from mtplx.chat.session import Settings
    from mtplx.chat.talk import talk

    settings = Settings(
        params=params,
        depth=request.depth or None,
        drafts=request.depth != 0,
        system=request.system,
    )
    code = talk(partial(load_model, request.model, request.head), settings)
    if code:
        raise typer.Exit(code)
