"""The words of all other packages: errors, rows, schemas, digests, protocols, files and child processes."""
