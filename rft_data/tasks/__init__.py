"""Tasks: their sources, their table and record, curation during a run, and selectors.

Operators over tasks are in `ops/tasks/`. They import these modules, so this file imports nothing heavy.
"""
