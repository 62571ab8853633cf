"""`python -m stages.quality "text"`."""

from stages.attempt import main

main("quality")
