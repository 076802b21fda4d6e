"""The gRPC server for RocketMQ 5's own clients, alone (mqproxy) or in a broker. It keeps no state."""
