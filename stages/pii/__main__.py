"""`python -m stages.pii "text"`."""

from stages.attempt import main

main("pii")
