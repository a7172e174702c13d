"""A recipe as a form: its fields from the JSON Schema of recipes, and changed fields as text again."""
