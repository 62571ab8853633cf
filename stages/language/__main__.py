"""`python -m stages.language "text"`."""

from stages.attempt import main

main("language")
