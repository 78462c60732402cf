"""The pages of docs/ that are made from the program."""
