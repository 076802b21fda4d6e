"""The console: a web page that shows a running cluster and carries out an operator's actions.

`Console` (console.py) polls the cluster, api.py serves it under /v1/console. It runs inside mqnamesrv, and
alone as `keelmq console` (standalone.py). See docs/adr/0037.
"""
