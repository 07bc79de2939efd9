"""The command line: one module per verb; parse, call one function, print."""

import sys


def main() -> None:
    """The console script: one line for what a person can mend, a traceback for the rest."""
    if sys.version_info < (3, 11):  # noqa: UP036, a checkout can be run by any Python
        sys.exit("mtplx: Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    try:
        # In here so that Ctrl-C is answered from the first moment on.
        from mtplx.cli.app import run

        sys.exit(run(sys.argv[1:] or ["--help"]))
    except KeyboardInterrupt:
        sys.exit(130)
