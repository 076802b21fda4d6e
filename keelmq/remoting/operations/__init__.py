"""One Operation per request code, with its header and body models. A model's docstring names its request
code."""
