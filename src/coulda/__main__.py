"""`python -m coulda`."""

from coulda.cli import main

if __name__ == "__main__":
    main()
