"""Data that comes from outside and goes there: file formats, feedback, preference pairs, annotations."""
