"""Tasks as a table, their record in the buffer, and what is done to them before and during a run.

No operator lives here (see `ops/tasks/`) and no selector: this is what both work on. Operators import
its modules, so that nothing heavy may be imported by this file.
"""
