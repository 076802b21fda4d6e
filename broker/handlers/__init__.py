"""What a broker answers: bind_broker_operations() puts all of it into one OperationTable."""
