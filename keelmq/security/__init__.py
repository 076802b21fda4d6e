"""Authentication and authorization: who may send which request. Never imported by keelmq.remoting."""
