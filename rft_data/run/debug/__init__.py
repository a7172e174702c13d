"""One thing of a recipe, once, with everything shown: a task, a reward, an operator, a rollout."""
