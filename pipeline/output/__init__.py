"""What a build leaves: shards and the manifest, the report, what was dropped.

`members.py` says what the sources of the manifest are, `shards.py` and `materialize.py` write them, `finish.py` puts
everything in its place with the manifest last. `dropped.py` writes the tables of what was dropped and for whom, `evidence.py`
shows some of it, `against.py` has what later corpora need to stay free of this one's documents, `report.py` the page for people.
"""
