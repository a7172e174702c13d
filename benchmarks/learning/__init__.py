"""Whether every online algorithm learns: held-out accuracy of the quickstart with each, before and after."""
