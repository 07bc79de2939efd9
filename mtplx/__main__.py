"""`python -m mtplx`: the command line."""

from mtplx.cli import main

if __name__ == "__main__":
    main()
