"""Whether every online algorithm learns: held-out accuracy of a tiny model with each, before and after."""
