"""How a model plays a task: rollouts and the groups they form."""
