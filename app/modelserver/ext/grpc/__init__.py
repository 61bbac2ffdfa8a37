"""gRPC: TorchServe's services and the Open Inference Protocol, on the same pools and queues as REST."""
