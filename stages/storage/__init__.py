"""Files that lie on a store (`s3://…`, `gs://…`, any address that fsspec knows) instead of a disk.

`address` makes an address look like a path; `patience` is what every request to a store goes through; `cache` holds
copies on the local disk, within a bound. What is on a disk stays a plain `Path` and pays for none of this.

A store has no rename. So a file is put there whole, in one request, under the name it keeps; readers see all of it or
none. Credentials come from the environment of the process (or the machine's role) and are read by fsspec alone; `access`
has what a config says beside that.
"""
