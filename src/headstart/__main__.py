"""``python -m headstart``, as ``torchrun -m headstart`` starts it too."""

from headstart.cli import main

if __name__ == "__main__":
    main()
