"""Ways to read stored rows: SQL, search, lineage, groups, tags and branches.

No module here writes experiences to the buffer that it reads.
"""
