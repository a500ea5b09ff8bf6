"""`realchar bench`: what each way of holding a base costs, in seconds and memory, each measured in a process of its own."""
