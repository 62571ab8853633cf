"""`python -m stages.rules "text"`."""

from stages.attempt import main

main("rules")
