"""`python -m memtape ...` is the program `memtape ...`."""

from memtape._program import main

main()
