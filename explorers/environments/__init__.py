"""What a model acts in: tools made from a class, environments of Gymnasium as text, and the pool of both."""
