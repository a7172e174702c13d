"""How operator lists run: checked, strict, conserving, in this process or in workers."""
