"""What a build leaves: shards and the manifest, the report, the evidence of what was dropped.

`members.py` says what the sources of the manifest are, `shards.py` and `materialize.py` write them, `finish.py` puts
everything in its place with the manifest last. `evidence.py` has who was dropped for whom, `against.py` what later corpora
need to stay free of this one's documents, `report.py` the page for people.
"""
