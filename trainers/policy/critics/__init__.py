"""The two critics: a head on the policy's own hidden states, and a model beside the policy."""
