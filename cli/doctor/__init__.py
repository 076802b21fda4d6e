"""`keelmq doctor`: looks at configuration files, this machine and a running cluster, and says what is wrong
and what to do next. It starts nothing and changes nothing.
"""
