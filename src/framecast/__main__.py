"""`python -m framecast` is the `framecast` command."""

from framecast.cli import main

main()
