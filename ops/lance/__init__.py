"""Reading from and writing to Lance tables from Data-Juicer."""
