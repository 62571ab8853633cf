"""`python -m stages.extract "text"`."""

from stages.attempt import main

main("extract")
