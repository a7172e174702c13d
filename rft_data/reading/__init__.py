"""Questions to stored rows: SQL, search, lineage, groups side by side, tags.

Nothing here writes experiences.
"""
