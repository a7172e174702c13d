"""What all other packages use: errors, rows, schemas, digests, protocols, files and child processes."""
