"""Mutation gate: small wrong edits of the code, one at a time, and whether the tests of its module notice.

A script of ours because mutmut 3 changes only what stands inside functions (not the constants of a module or
a class), in one process with its own copy of each function, so that children of tests never see a mutant; and
because the reason for an equivalent mutant is to be kept beside the gate, not as a comment in the code.
"""
