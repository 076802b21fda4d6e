"""What an operator can do from the console: one Action each, see action.py."""
