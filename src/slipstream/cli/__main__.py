"""`python -m slipstream.cli`: the command line without an installed script."""

from slipstream.cli import main

if __name__ == "__main__":
    main()
