"""`python -m burnish`."""

from .cli import main

main()
