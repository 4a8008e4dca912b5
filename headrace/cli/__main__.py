"""`python -m headrace.cli`: the same as the `headrace` script."""

from headrace.cli.main import main

main()
