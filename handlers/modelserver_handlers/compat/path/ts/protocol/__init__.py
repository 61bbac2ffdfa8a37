"""What TorchServe's workers speak."""
