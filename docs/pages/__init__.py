"""Pages that are written from the code: `python -m docs.pages.NAME > docs/NAME.md`."""
