"""One thing of a recipe, with everything shown: a task, a reward, an operator, a rollout."""
