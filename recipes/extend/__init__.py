"""One small file for each part of a run that can be your own; `recipes/extend.yaml` names them."""
