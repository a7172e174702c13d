"""The `rft` command. stdout is the result, stderr the progress; every failure has its exit code."""
