"""`python -m departing`: the command line."""

from departing.cli import main

if __name__ == "__main__":
    main()
