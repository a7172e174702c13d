"""Words that every room speaks: errors, rows, schemas, digests, protocols, files and child processes."""
