"""The state of a running cluster: what its servers answer (snapshot.py), judged (verdict.py, groups.py), as
findings with the next step of the operator. `keelmq doctor`, `keelmq status` and the console show it.
"""
