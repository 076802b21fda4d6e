"""The messages of gRPC. messaging_pb2.py and messaging_pb2.pyi are generated from messaging.proto."""
