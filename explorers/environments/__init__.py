"""Worlds in which a model acts: tools made from a class, Gymnasium's environments as text, a pool of both."""
